package edge

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// ParseSwitch reads a setting that is on or off; "" is unset.
func ParseSwitch(field, text string, unset bool) (bool, error) {
	switch text {
	case "":
		return unset, nil
	case "on", "true", "1":
		return true, nil
	case "off", "false", "0":
		return false, nil
	}
	return false, &ratelimit.FieldError{Field: field, Value: text, Want: "on or off, or true or false"}
}
