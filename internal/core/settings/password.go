package settings

import "strings"

// space lists the characters that may stand around the = of a key=value pair.
const space = " \t\n\r\v\f"

// HasPassword reports whether a DSN, a URL or key=value pairs, holds a password.
func HasPassword(dsn string) bool {
	if at := strings.Index(dsn, "://"); at >= 0 {
		rest := dsn[at+3:]
		if end := strings.LastIndexByte(rest, '@'); end >= 0 {
			colon := strings.IndexByte(rest[:end], ':')
			if colon >= 0 && colon < end-1 {
				return true
			}
		}
	}
	rest := strings.ToLower(dsn)
	for {
		at := strings.Index(rest, "password") // also sslpassword
		if at < 0 {
			return false
		}
		rest = rest[at+len("password"):]
		value := strings.TrimLeft(rest, space)
		if strings.HasPrefix(value, "=") {
			value = strings.TrimLeft(value[1:], space)
			if value != "" && value[0] != '&' && !strings.HasPrefix(value, "''") {
				return true
			}
		}
	}
}
