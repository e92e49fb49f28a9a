"""What language a file is in, by its name; and which files tell most about a project."""

_BY_LANGUAGE = {
    "Python": "py pyi pyx", "JavaScript": "js mjs cjs jsx", "TypeScript": "ts mts cts tsx", "Rust": "rs", "Go": "go",
    "C": "c h", "C++": "cc cpp cxx hh hpp hxx cu", "C#": "cs", "Java": "java", "Kotlin": "kt kts", "Scala": "scala sc",
    "Swift": "swift", "Objective-C": "m mm", "Ruby": "rb rake", "PHP": "php", "Perl": "pl pm", "Lua": "lua", "R": "r",
    "Julia": "jl", "Haskell": "hs", "OCaml": "ml mli", "Elixir": "ex exs", "Erlang": "erl hrl", "Clojure": "clj cljs cljc",
    "Dart": "dart", "Zig": "zig", "Nim": "nim", "Assembly": "s asm", "Shell": "sh bash zsh fish", "PowerShell": "ps1",
    "SQL": "sql", "Protobuf": "proto", "Terraform": "tf", "Nix": "nix", "Vue": "vue", "Svelte": "svelte",
    "Notebook": "ipynb",
}  # fmt: skip
_BESIDE_CODE = {
    "HTML": "html htm", "CSS": "css scss sass less", "Markdown": "md mdx markdown", "Text": "txt rst adoc", "TeX": "tex",
    "TOML": "toml", "YAML": "yaml yml", "JSON": "json jsonl", "XML": "xml", "INI": "ini cfg conf", "CSV": "csv tsv",
    "Image": "png jpg jpeg gif svg ico webp",
}  # fmt: skip
_NAMES = {
    "makefile": "Make",
    "dockerfile": "Docker",
    "cmakelists.txt": "CMake",
    "rakefile": "Ruby",
    "gemfile": "Ruby",
}
_EXTENSIONS = {
    f".{ext}": name
    for table in (_BY_LANGUAGE, _BESIDE_CODE)
    for name, exts in table.items()
    for ext in exts.split()
}
_FIRST = frozenset({
    "readme.md", "readme.rst", "readme.txt", "readme", "agents.md", "claude.md", "pyproject.toml", "setup.py",
    "package.json", "cargo.toml", "go.mod", "makefile", "cmakelists.txt", "pom.xml", "build.gradle", "build.gradle.kts",
    "gemfile", "composer.json", "mix.exs", "dockerfile",
})  # fmt: skip
_ENTRIES = frozenset({"main", "__main__", "cli", "app", "index", "lib", "mod", "server"})
_ASIDE = frozenset({
    "test", "tests", "spec", "specs", "__tests__", "fixtures", "testdata", "examples", "vendor", "third_party", "dist",
    "build", "generated", "migrations", "snapshots",
})  # fmt: skip
_MADE = (".lock", "-lock.json", "-lock.yaml", ".min.js", ".min.css", ".map", ".snap", ".sum")


def language(name: str) -> str:
    """The language of a file's name; empty for one that is not known."""
    low = name.lower()
    return _NAMES.get(low) or _EXTENSIONS.get(low[low.rfind(".") :] if "." in low else "", "")


def usefulness(folder: tuple[str, ...], name: str) -> int:
    """How much a file tells whoever sees a project for the first time: what it is, where it begins, its code."""
    low, kind = name.lower(), language(name)
    if low.endswith(_MADE):
        return 0
    aside = bool(_ASIDE & {part.lower() for part in folder}) or any(part.startswith(".") for part in folder)
    if low in _FIRST and not folder:
        return 100
    value = (
        40
        if kind in _BY_LANGUAGE
        else 20
        if kind in ("Markdown", "Text") or low in _FIRST
        else 10
        if kind
        else 5
    )
    value += 15 * (low.partition(".")[0] in _ENTRIES)
    return max(1, (value - 3 * len(folder)) // (4 if aside else 1))
