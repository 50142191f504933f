# SPDX-License-Identifier: Apache-2.0
"""Every platform's page begins with a walkthrough, and none of its commands can stay unrun."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from walkthrough import Instead, PageError, Walkthrough

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = """\
# A page

```sh
NAME=somebody      # who
```

## To follow

Here:

```sh here
echo "hello $NAME" >greeting
cat greeting
cat >file <<'EOF'
## no heading
EOF
```

```text
hello …
```

There:

```sh there
cat file
```

## Another

    not looked at
"""


def run(folder: Path, command: str, variables: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def follow(folder: Path, text: str, **instead: Instead) -> list[str]:
    page = folder / "page.md"
    page.write_text(text)
    places = {place: lambda *words: run(folder, *words) for place in ("here", "there")}
    table = {"cat file": instead["cat_file"]} if instead else {}
    return Walkthrough(page, "To follow").follow(places, {"NAME": "Ada Lovelace"}, table)


def test_commands_run_in_their_order_with_the_tests_values(tmp_path: Path) -> None:
    assert follow(tmp_path, PAGE) == ["hello Ada Lovelace\n", "## no heading\n"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("cat greeting", "cat parting", "page.md:11: 'cat parting' failed"),
        ("cat file\n", "false\n", "page.md:25: 'false' failed"),
        ("hello …", "bye …", "'bye …' is not printed"),
        ("```sh there", "```sh elsewhere", "nobody knows the place 'elsewhere'"),
        ("```sh there", "```sh", "says not where it runs"),
        ("```sh there", "```console", "neither `sh PLACE` nor"),
        ("```sh there", "```", "neither `sh PLACE` nor"),
        ("There:", "There:\n\n    cat file", "an indented block says not where it runs"),
        ("There:", "- There:\n  ```sh there\n  true\n  ```", "an indented block says not where"),
        ("cat file\n", "cat 'file\n", "is no command"),
        ("```sh\nNAME=", "```sh\nUSER=b\nNAME=", "sets ['NAME', 'USER'], the test ['NAME']"),
        ("# A page", "# A page\n\n```sh here\ntrue\n```\n", "only variables stand before"),
        ("## To follow", "## To read", "no section 'To follow'"),
    ],
)
def test_what_would_not_run_or_not_be_so_is_an_error(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in PAGE
    with pytest.raises(PageError) as raised:
        follow(tmp_path, PAGE.replace(old, new, 1))
    assert said in str(raised.value)


def test_a_replaced_command_has_to_be_there(tmp_path: Path) -> None:
    other = Instead("nothing is there", "echo other")
    assert follow(tmp_path, PAGE, cat_file=other)[1] == "other\n"
    gone = PAGE.replace("cat file\n", "cat greeting\n")
    with pytest.raises(PageError, match="has no command 'cat file'"):
        follow(tmp_path, gone, cat_file=other)


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("libvirt.md", "From nothing to a CUDA program in a VM"),
        ("openstack.md", "From nothing to a CUDA program in a VM"),
        ("vsphere.md", "From nothing to a CUDA program in a VM"),
        ("guest.md", "From nothing to a CUDA program"),
    ],
)
def test_a_platforms_page_begins_with_its_walkthrough(page: str, heading: str) -> None:
    sections = [s for s in (DOCS / page).read_text().splitlines() if s.startswith("## ")]
    assert sections[0] == f"## {heading}"
    assert Walkthrough(DOCS / page, heading).blocks
