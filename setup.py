"""Map the folders of the repository to the packages of the wheel: ``generation/`` is
``sts_dino.generation``.
"""

from setuptools import find_namespace_packages, setup

FOLDERS = ("hub", "generation", "training", "eval", "model_cards", "release")

# The links in sts_dino/ are for type checkers and editors; a checkout without symbolic links
# installs as well.
packages = ["sts_dino", "sts_dino.proposals"]
for folder in FOLDERS:
    packages.append(f"sts_dino.{folder}")
    inner = find_namespace_packages(folder, exclude=["*__pycache__*"])  # folders of data count, too
    packages += [f"sts_dino.{folder}.{name}" for name in inner]

setup(packages=packages, package_dir={f"sts_dino.{folder}": folder for folder in FOLDERS})
