package host

// Version is the version of pg-ratelimit: the newest in CHANGELOG.md. xcaddy/go.mod has the same version. It
// is a constant because an interpreted program has no build information.
const Version = "v0.1.0"
