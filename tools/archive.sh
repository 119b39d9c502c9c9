# Debian's archive, for the scripts that source this: apt with a state of its own, which knows one archive and one suite. The
# system's apt state is neither used nor touched, and no privileges are needed. No host is named: the archive's address is the one
# that apt is set up with already (indextargets reads deb822 and one-line files alike). apt checks InRelease against Debian's keyring,
# then the lists, then each file.
# shellcheck shell=bash disable=SC2034

archive_keyring=
for archive_k in /usr/share/keyrings/debian-archive-keyring.{gpg,pgp}; do
    if [ -r "$archive_k" ]; then
        archive_keyring=$archive_k
        break
    fi
done
# shellcheck source=/dev/null
archive_codename=$(. /etc/os-release 2>/dev/null && echo "${VERSION_CODENAME:-}") || true

# archive_bases: sets archive_list to the base addresses of the archives that carry this machine's own release, component main.
# None: exit status 1, and $archive_why says why.
archive_bases() {
    local found
    command -v apt-get >/dev/null || { archive_why="no apt-get here"; return 1; }
    [ -n "$archive_keyring" ] || { archive_why="package debian-archive-keyring is missing"; return 1; }
    # shellcheck disable=SC2016  # apt fills these in
    found=$(apt-get indextargets --no-release-info --format '$(REPO_URI)|$(RELEASE)|$(COMPONENT)' 2>/dev/null |
        awk -F'|' -v c="$archive_codename" \
            '$3 == "main" && ($2 == c || $2 == "stable" || $2 == "oldstable") && !seen[$1]++ {print $1}') || true
    [ -n "$found" ] || { archive_why="apt has no source for '$archive_codename main' on this machine"; return 1; }
    mapfile -t archive_list <<<"$found"
}

# archive_open STATE KIND BASE SUITE COMPONENTS: makes the folder STATE know that and nothing else, and reads the lists; KIND is deb
# or deb-src. What an earlier call left there saves fetching it again. Exit status 1: $archive_why says why.
archive_open() {
    local a=$1
    rm -rf "$a/dl"
    mkdir -p "$a"/{etc,lists/partial,cache/archives/partial,log,dl}
    printf 'Types: %s\nURIs: %s\nSuites: %s\nComponents: %s\nSigned-By: %s\n' "$2" "$3" "$4" "$5" "$archive_keyring" \
        >"$a/etc/one.sources"
    cat >"$a/apt.conf" <<C
#clear APT::Update;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Invoke;
Dir::Etc::sourcelist "$a/etc/one.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::trusted "/dev/null";
Dir::Etc::trustedparts "/dev/null";
Dir::State "$a";
Dir::State::lists "$a/lists";
Dir::State::status "/dev/null";
Dir::Cache "$a/cache";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Dir::Log "$a/log";
Acquire::Languages "none";
Acquire::PDiffs "false";
Acquire::Retries "3";
Acquire::http::Timeout "60";
Acquire::https::Timeout "60";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
APT::Get::AllowUnauthenticated "false";
APT::Update::Error-Mode "any";
C
    # As root, apt downloads as user _apt; where _apt cannot reach this folder, it is told not to try.
    if [ "$(id -u)" = 0 ]; then
        chown _apt "$a/dl" "$a/lists/partial" 2>/dev/null || true
        if ! setpriv --reuid=_apt --regid=nogroup --clear-groups test -w "$a/dl" 2>/dev/null; then
            echo 'APT::Sandbox::User "root";' >>"$a/apt.conf"
        fi
    fi
    archive_run "$a" apt-get -q update
}

# archive_apt STATE COMMAND ARGS...: an apt program with that state.
archive_apt() {
    local a=$1 c=$2
    shift 2
    LC_ALL=C timeout 600 "$c" -c "$a/apt.conf" "$@"
}

# archive_run STATE COMMAND ARGS...: the same, quietly, in STATE/dl, where downloads come to lie. Exit status 1: $archive_why says why,
# and names no host.
archive_run() {
    local a=$1 log=$1/log/run
    if (cd "$a/dl" && archive_apt "$@") >"$log" 2>&1; then
        return 0
    fi
    archive_why=$(grep -m1 -E '^[EW]:' "$log" | sed 's|[a-z]*://[^ ]*|(archive)|g') || archive_why="$2 failed"
    return 1
}
