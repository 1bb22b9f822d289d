"""How many bytes of tensors are alive while a piece of torch code runs, and the most there were at any moment."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Follows every storage that an operation makes while the mode is active, until nobody holds it any more.

    What autograd keeps for the backward pass counts, gradients too, and so do tensors that live for a moment; a
    kernel's own workspace is not seen. ``known`` tensors (parameters) are not counted. ``now`` and ``peak`` are bytes.
    Works on real and on fake tensors (enter it inside the ``FakeTensorMode``), with the same result.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()):
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known = [tensor.untyped_storage() for tensor in known]  # kept, so that no new storage gets their place
        self._seen: dict[int, object] = {storage._cdata: storage for storage in self._known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what it made."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self.now += size
        self.peak = max(self.peak, self.now)
        self._seen[key] = weakref.ref(storage, lambda _: self._drop(key, size))

    def _drop(self, key: int, size: int) -> None:
        self.now -= size
        del self._seen[key]
