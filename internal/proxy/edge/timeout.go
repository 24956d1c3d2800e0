package edge

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// DefaultTimeout is how long a request waits for its decision.
const DefaultTimeout = ratelimit.DefaultTimeout

const wantTimeout = "a duration from 1ms to 1m"

// ParseTimeout reads a timeout, a duration as ratelimit.ParseWindow takes it; "" is
// DefaultTimeout.
func ParseTimeout(text string) (time.Duration, error) {
	if text == "" {
		return DefaultTimeout, nil
	}
	d, err := ratelimit.ParseWindow(text)
	if err != nil || d < time.Millisecond || d > time.Minute {
		return 0, &ratelimit.FieldError{Field: "timeout", Value: text, Want: wantTimeout}
	}
	return d, nil
}

// CheckTimeout returns a timeout that was set as a duration; 0 is DefaultTimeout.
func CheckTimeout(d time.Duration) (time.Duration, error) {
	if d == 0 {
		return DefaultTimeout, nil
	}
	if d < time.Millisecond || d > time.Minute {
		return 0, &ratelimit.FieldError{Field: "timeout", Value: d.String(), Want: wantTimeout}
	}
	return d, nil
}
