package settings

import (
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// year is the longest year, so that ParseAge does not cut seven years short.
	year     = 366 * 24 * time.Hour
	maxYears = 100

	// MaxAge is the longest time in years that ParseAge accepts.
	MaxAge = maxYears * year
)

// ParseAge reads a duration as ratelimit.ParseWindow takes it, or 1 to 100 years of 366 days, as in 7y.
func ParseAge(text string) (time.Duration, error) {
	number, isYears := strings.CutSuffix(text, "y")
	if !isYears {
		return ratelimit.ParseWindow(text)
	}
	years, err := strconv.Atoi(number)
	if err != nil || years < 1 || years > maxYears {
		const want = "a duration such as 90d, or up to 100 years, as in 7y"
		return 0, &ratelimit.FieldError{Value: text, Want: want}
	}
	return time.Duration(years) * year, nil
}
