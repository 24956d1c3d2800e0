package edge

// Version is that of pg-ratelimit: the newest release in CHANGELOG.md, or the next one with -dev. xcaddy/go.mod
// has it, too. It is a constant because an interpreted program does not know how it was built.
const Version = "v0.1.0"

// Program names a program of pg-ratelimit in the registry of proxies and in logs: the proxy with its
// version, if that is known, and the version of pg-ratelimit in it.
func Program(proxy, version string) string { return proxy + ", pg-ratelimit " + version }
