package edge

import (
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Bound is the range of a setting that is a whole number: from 1 to Most.
type Bound struct {
	Field string // the setting's name in errors
	Most  int
}

// Want says what the setting must be.
func (b Bound) Want() string { return "a whole number from 1 to " + strconv.Itoa(b.Most) }

// Check returns an error for a number out of range. 0 is a setting that was left out.
func (b Bound) Check(n int) error {
	if n < 0 || n > b.Most {
		return &ratelimit.FieldError{Field: b.Field, Value: strconv.Itoa(n), Want: b.Want()}
	}
	return nil
}

// Parse reads a number. 0 is out of range.
func (b Bound) Parse(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > b.Most {
		return 0, &ratelimit.FieldError{Field: b.Field, Value: text, Want: b.Want()}
	}
	return n, nil
}
