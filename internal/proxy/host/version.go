package host

// Version is the version of pg-ratelimit: the newest release in CHANGELOG.md, or the next one with -dev.
// xcaddy/go.mod has it, too. It is a constant because an interpreted program cannot find out how it was
// built.
const Version = "v0.1.0"
