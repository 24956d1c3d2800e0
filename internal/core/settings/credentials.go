package settings

import "strings"

// credentialHeaders carry secrets, although their names contain none of credentialWords.
var credentialHeaders = []string{"authorization", "proxy-authorization", "cookie"}

// CredentialHeader reports whether a request header of that name holds a secret. By default, a key
// that contains a secret is stored as a digest.
func CredentialHeader(name string) bool {
	for _, known := range credentialHeaders {
		if strings.EqualFold(name, known) {
			return true
		}
	}
	return CredentialName(name)
}

// credentialWords occur in the names of secrets.
var credentialWords = []string{"password", "secret", "token", "api_key", "api-key", "apikey", "auth-key",
	"private-key", "credential"}

// CredentialName reports whether a value of that name, such as a query parameter, is likely to be a secret.
func CredentialName(name string) bool {
	name = strings.ToLower(name)
	for _, word := range credentialWords {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}
