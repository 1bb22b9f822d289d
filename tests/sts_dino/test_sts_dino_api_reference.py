"""The page on the Python API says what the functions are now."""

import inspect

from sts_dino import api
from sts_dino.api_reference import PAGE, page


def test_the_page_is_as_the_functions_are_now():
    assert PAGE.read_text(encoding="utf-8") == page(), "run sts-dino api-reference --write"


def test_every_public_function_stands_there_with_all_its_arguments():
    text = page()
    public = {
        name: one for name, one in vars(api).items() if inspect.isfunction(one) and one.__module__ == api.__name__
    }
    public = {name: one for name, one in public.items() if not name.startswith("_")}
    assert len(public) >= 6
    for name, function in public.items():
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for one in inspect.signature(function).parameters.values():
            line = next(line for line in section.splitlines() if line.lstrip(" *").startswith(f"{one.name}: "))
            assert one.default is one.empty or line.replace('"', "'").endswith(f" = {one.default!r},"), line
        assert inspect.getdoc(function).splitlines()[0].replace("``", "`") in section
