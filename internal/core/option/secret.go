package option

import "regexp"

var (
	credentialName = regexp.MustCompile(
		`(?i)password|secret|token|api[_-]?key|auth-key|private-key|credential`)
	credentialHeader = regexp.MustCompile(`(?i)^(?:(?:proxy-)?authorization|cookie)$`)

	// password matches a DSN, a URL or key=value pairs, with a password that is not empty.
	password = regexp.MustCompile(`(?is)://[^:]*:.+@|password[\s\v]*=[\s\v]*(?:[^\s\v&']|'(?:[^']|$))`)
)

// CredentialName reports whether a value with this name, such as a query parameter, is likely to be a secret.
func CredentialName(name string) bool { return credentialName.MatchString(name) }

// CredentialHeader reports whether a request header with this name holds a secret. By default, a key that
// contains a secret is stored as a digest.
func CredentialHeader(name string) bool {
	return credentialHeader.MatchString(name) || CredentialName(name)
}

// HasPassword reports whether a DSN holds a password, such as sslpassword.
func HasPassword(dsn string) bool { return password.MatchString(dsn) }
