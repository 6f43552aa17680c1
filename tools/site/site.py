#!/usr/bin/env python3
"""Builds docs/ as a site, strictly, and checks every link of the built pages: tools/site/site.py VERSION

The site of a version is .cache/site/html/VERSION; versions.json beside it feeds the menu of versions.
docs/llms.txt names the sections and their pages: the navigation follows it.
"""
import hashlib
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCE = ROOT / ".cache/site/source"
PAGES = SOURCE / "docs"
REPOSITORY = "https://github.com/effectonce/effectonce"
# Pages of the site that are not in docs/, or have another name there.
RENAMED = {
    "README.md": "index.md",
    "docs/README.md": "documents.md",
    "docs/platforms/README.md": "platforms/index.md",
    "examples/README.md": "examples.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
}


def generator():
    """Returns Zensical of requirements.txt, installed once in the user's cache."""
    requirements = HERE / "requirements.txt"
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    venv = cache / "effectonce" / f"site-{digest[:12]}"
    if not (venv / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes",
                        "--only-binary", ":all:", "-r", requirements], check=True)
        (venv / "installed").touch()
    return venv / "bin/zensical"


def staged(path):
    """Returns the page or picture of the site that a file of the repository becomes, or None."""
    if path in RENAMED:
        return RENAMED[path]
    name = path.removeprefix("docs/").rstrip("/")
    if not path.startswith("docs/"):
        return None
    return name + "/index.md" if (ROOT / path).is_dir() else name


def resolve(page, target, version):
    """Returns a link of a page of the repository as the site needs it."""
    path, hash_, anchor = target.partition("#")
    if not path or urllib.parse.urlparse(target).scheme:
        return target
    path = os.path.normpath(os.path.join(os.path.dirname(page), path))
    if not (ROOT / path).exists():
        raise SystemExit(f"{page}: the link {target} leads nowhere")
    if there := staged(path):
        return os.path.relpath(there, os.path.dirname(staged(page))) + hash_ + anchor
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/{version}/{path}{hash_}{anchor}"


def site_text(page, text, version):
    """Returns a page's Markdown for Python-Markdown: links resolved, lists indented by four."""
    out, fence, lists = [], False, []
    for line in text.split("\n"):
        bare = line.lstrip(" ")
        indent = len(line) - len(bare)
        mark = re.match(r"(?:[-*]|\d{1,2}\.) +", bare)
        if not fence and bare:
            while lists and indent < lists[-1] and (mark or out[-1] == "" or bare.startswith(("#", "|", "```"))):
                lists.pop()
            if mark and indent < 4 + (lists[-1] if lists else 0):
                if not lists and out and out[-1] and not bare.startswith("#"):
                    out.append("")
                line = "    " * len(lists) + bare
                lists.append(indent + len(mark[0]))
            elif lists and indent >= lists[-1]:
                line = "    " * len(lists) + line[lists[-1]:]
        elif fence and lists and indent >= lists[-1]:
            line = "    " * len(lists) + line[lists[-1]:]
        if bare.startswith("```"):
            fence = not fence
        elif not fence and not line.startswith("     "):
            line = re.sub(r"^(\d{3})\. ", r"\1\\. ", line)
            line = re.sub(r"\]\(([^)\s]+)\)", lambda m: f"]({resolve(page, m[1], version)})", line)
            line = re.sub(r"(?<!\[)`((?:docs|examples|deploy)/[\w./-]+|[A-Z]+\.md)`(?!\])", lambda m:
                          f"[`{m[1]}`]({resolve('README.md', m[1], version)})" if page == "README.md" else m[0], line)
        out.append(line)
    return "\n".join(out)


def title(path):
    return re.search(r"^# (.*)$", path.read_text(), re.M)[1].replace("`", "")


def index_of(folder, name):
    """Writes an index for a folder that has none, and returns the folder's pages."""
    pages = [p for p in sorted(folder.glob("*.md")) if p.name != "index.md"]
    if pages and not (folder / "index.md").exists():
        (folder / "index.md").write_text(f"# {name}\n\n" + "".join(f"- [{title(p)}]({p.name})\n" for p in pages))
    return pages


def stage(version):
    """Writes the source of the site, and returns its navigation."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    sources = [p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "docs").rglob("*"))
               if p.is_file() and p.suffix != ".go"]
    for path in sources + [p for p in RENAMED if p not in sources]:
        to = PAGES / staged(path)
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".md"):
            to.write_text(site_text(path, (ROOT / path).read_text(), version))
        else:
            shutil.copy(ROOT / path, to)
    for asset in ("iframe-worker.js", "site.css"):
        shutil.copy(HERE / asset, PAGES)
    nav, index = [], []
    for line in (ROOT / "docs/llms.txt").read_text().splitlines():
        if line.startswith("## "):
            nav.append({line[3:]: []})
        entry = re.match(r"- \[(.*?)\]\((.*?)\)(.*)", line)
        if not entry:
            index.append(line)
            continue
        name, target, about = entry.groups()
        page = resolve("docs/llms.txt", target, version)
        index.append(f"- [{name}]({page}){about}")
        section = next(iter(nav[-1].values()))
        if not target.endswith("/"):
            section.append({name: page})
            continue
        pages = index_of(PAGES / target, name)
        section.append({name: [f"{target}index.md"] + [
            {title(p).removeprefix("Effectonce"): target + p.name} for p in pages]})  # what all alerts begin with
        index += [f"- [{title(p)}]({target}{p.name})" for p in pages]
    (PAGES / "llms.txt").write_text("\n".join(index) + "\n")
    for folder in PAGES.rglob("*/"):
        index_of(folder, folder.name.capitalize())
    return nav


class Page(html.parser.HTMLParser):
    """The ids of a page, its links, and what a browser loads with it."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids.update(v for k, v in attrs.items() if k in ("id", "name") and v)
        for key in ("href", "src", "srcset", "poster", "data"):
            if attrs.get(key):
                loaded = tag not in ("a", "area") and attrs.get("rel") not in ("canonical", "prev", "next", "alternate")
                (self.loads if loaded else self.links).append(attrs[key])


def check(site):
    """Returns what is wrong with the built pages: links that lead nowhere, and what they load from others' servers."""
    pages = {p: Page(p.read_text()) for p in sorted(site.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        at = path.relative_to(site)
        for link in page.loads + page.links:
            url = urllib.parse.urlparse(link)
            if url.scheme or url.netloc:
                if link in page.loads and url.scheme != "data":
                    wrong.append(f"{at} loads {link}")
                continue
            if path.name == "404.html":
                continue  # its links begin at the server's root
            to = path if not url.path else path.parent / urllib.parse.unquote(url.path)
            to = pathlib.Path(os.path.normpath(to))
            to = to / "index.html" if to.is_dir() else to
            if not to.exists():
                wrong.append(f"{at}: {link} leads nowhere")
            elif url.fragment and to in pages and urllib.parse.unquote(url.fragment) not in pages[to].ids:
                wrong.append(f"{at}: {link} names no place of its page")
    for path in site.rglob("*.css"):
        wrong += [f"{path.relative_to(site)} loads {u}" for u in re.findall(r"url\(\"?(https?:[^)]*)", path.read_text())]
    return len(pages), wrong


def main(version):
    if not re.fullmatch(r"main|v\d+\.\d+(\.\d+)?(-[\w.]+)?", version):
        raise SystemExit(f"{version} is no version: main, v0.1.0")
    nav = stage(version)
    built, site = SOURCE / "site", ROOT / ".cache/site/html" / version
    config = {"INHERIT": str(HERE / "site.yml"), "nav": nav, "docs_dir": "docs", "site_dir": "site",
              "extra": {"version": {"provider": "mike"}}}
    (SOURCE / "mkdocs.yml").write_text(json.dumps(config, indent=1))
    subprocess.run([generator(), "build", "--strict", "--clean", "-f", SOURCE / "mkdocs.yml"], check=True, cwd=SOURCE)
    for page in PAGES.rglob("*.md"):  # llms.txt leads to them
        shutil.copy(page, built / page.relative_to(PAGES))
    count, wrong = check(built)
    if wrong:
        raise SystemExit("\n".join(wrong))
    shutil.rmtree(site, ignore_errors=True)
    site.parent.mkdir(parents=True, exist_ok=True)
    built.rename(site)
    versions = sorted((p.name for p in site.parent.iterdir() if p.is_dir() and not p.name.startswith(".")),
                      key=lambda v: (v != "main", [int(n) for n in re.findall(r"\d+", v)]), reverse=True)
    (site.parent / "versions.json").write_text(json.dumps(
        [{"version": v, "title": v, "aliases": []} for v in versions], indent=1) + "\n")
    (site.parent / "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>effectonce</title>'
        f'<meta http-equiv="refresh" content="0; url={versions[0]}/"><a href="{versions[0]}/">effectonce</a>\n')
    print(f"{count} pages in {site}")


if __name__ == "__main__":
    main(sys.argv[1])
