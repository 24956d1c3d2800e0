package option

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// Invalid returns a *ratelimit.FieldError. value is "" if the field is missing.
func Invalid(field, value, want string) error {
	return &ratelimit.FieldError{Field: field, Value: value, Want: want}
}
