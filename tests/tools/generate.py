# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the parts of the documentation that follow from code: tables of variables, and the page of causes.

With --check it writes nothing and fails when a file is not what it would write.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
BEGIN = "<!-- variables: written by ./dev docs -->"
END = "<!-- end of variables -->"
HEADER = """\
<!--
Copyright (c) 2026, torchlan contributors
GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
SPDX-License-Identifier: GPL-3.0-or-later
Written by ./dev docs from {source}: change that instead.
-->
"""
# Groups of causes in CODES are comments there: each is a heading of the page.
CAUSES = ROOT / "plugins/module_utils/causes.py"


def markdown(text: Any) -> str:
    """Ansible's semantic markup as Markdown, on one line."""
    lines = text if isinstance(text, list) else [text or ""]
    joined = " ".join(" ".join(str(line).split()) for line in lines)
    joined = re.sub(r"\b[OVCERFPM]V?\(((?:[^()\\]|\\.)*)\)", lambda found: f"`{unescape(found[1])}`", joined)
    return re.sub(r"\b[IB]\(([^()]*)\)", r"*\1*", joined)


def unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def default(option: dict[str, Any]) -> str:
    if option.get("required"):
        return "required"
    if option.get("default") is None:
        return ""
    value = option["default"]
    if isinstance(value, dict) and value:  # as the words of -e, which is shorter to read than JSON
        return ", ".join(f"`{key}={json.dumps(entry)}`" for key, entry in value.items())
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def variables(options: dict[str, dict[str, Any]]) -> str:
    rows = ["| variable | type | default | meaning |", "|---|---|---|---|"]
    for name, option in options.items():
        kind = option.get("type", "str")
        if option.get("elements"):
            kind += f" of {option['elements']}"
        meaning = markdown(option.get("description"))
        if option.get("choices"):
            meaning += " One of " + ", ".join(f"`{choice}`" for choice in option["choices"]) + "."
        rows.append(f"| `{name}` | {kind} | {cell(default(option))} | {cell(meaning)} |")
    return "\n".join(rows) + "\n"


def specs_of(role: Path) -> dict[str, Any]:
    """A role's entry points by name, main first."""
    entries = yaml.safe_load((role / "meta/argument_specs.yml").read_text(encoding="utf-8"))["argument_specs"]
    return {name: entries[name] for name in sorted(entries, key=lambda name: (name != "main", name))}


def role_page(role: Path) -> str:
    parts = [HEADER.format(source="meta/argument_specs.yml"), f"# torchlan.nanochat.{role.name}\n"]
    for name, spec in specs_of(role).items():
        if name != "main":
            parts.append(f"## Entry point `{name}`\n\nWith `tasks_from: {name}`.\n")
        parts.append(f"{markdown(spec.get('short_description'))}.\n")
        text = spec.get("description") or []
        parts += [markdown(paragraph) + "\n" for paragraph in (text if isinstance(text, list) else [text])]
        if spec.get("options"):
            parts.append(("## Variables\n\n" if name == "main" else "") + variables(spec["options"]))
    if role.name != "nanochat":
        parts.append("The collection's public variables are described in [the role nanochat](../nanochat/README.md).\n")
    return "\n".join(parts)


def causes_page() -> str:
    spec = importlib.util.spec_from_file_location("causes", CAUSES)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parts = [
        HEADER.format(source="plugins/module_utils/causes.py"),
        "# Causes\n",
        "What can be wrong, by the stable `code` of a cause in `report.json` and on the screen. There, `what` and\n"
        "`fix` name the host, the numbers and the command; here is what each code means in general.\n"
        "A code listed in `nanochat_preflight_ignore` only warns.\n",
    ]
    source = CAUSES.read_text(encoding="utf-8")
    for line in source[source.index("\nCODES") :].splitlines():
        heading = re.match(r"    # (.*)", line)
        code = re.match(r'    "(\w+)": ', line)
        if heading:
            name = heading[1][0].upper() + heading[1][1:].rstrip(".")
            parts.append(f"## {name}\n\n| code | meaning | fix |\n|---|---|---|")
        elif code:
            meaning, fix = module.CODES[code[1]]
            parts.append(f"| `{code[1]}` | {cell(meaning)} | {cell(fix)} |")
    # A table's end and the next heading need an empty line between them.
    return "\n".join(parts).replace(" |\n##", " |\n\n##") + "\n"


def wanted() -> dict[Path, str]:
    """Every generated file and its text."""
    files = {}
    roles = [path.parent.parent for path in sorted(ROOT.glob("roles/*/meta/argument_specs.yml"))]
    for role in roles:
        files[role / "README.md"] = role_page(role)
    if CAUSES.exists():
        files[ROOT / "docs/causes.md"] = causes_page()
    readme = ROOT / "README.md"
    if readme.exists():
        text = readme.read_text(encoding="utf-8")
        if BEGIN not in text or END not in text:
            sys.exit(
                f"README.md lacks the lines '{BEGIN}' and '{END}': the table of variables is written between them."
            )
        before, rest = text.split(BEGIN, 1)
        table = variables(specs_of(ROOT / "roles/nanochat")["main"]["options"])
        files[readme] = f"{before}{BEGIN}\n{table}{END}{rest.split(END, 1)[1]}"
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for path, text in wanted().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"Not up to date: {', '.join(stale)}. Write them with: ./dev docs")
        return 1
    print(f"Generated files: {'written: ' + ', '.join(stale) if stale else 'up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
