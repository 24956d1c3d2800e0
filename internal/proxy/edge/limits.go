package edge

import (
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const wantLimits = "text with a placeholder, a limit for each of its values, and one for all other values, as in {header.X-Plan} gold 1000 1m, free 10 1m, default 5 1m"

// defaultValue stands for all values that have no limit of their own.
const defaultValue = "default"

// readBy reads the placeholder whose values have limits.
func readBy(to *Settings, text string) error {
	words := strings.Fields(text)
	if text != "" && (len(words) == 0 || strings.IndexByte(words[0], '{') < 0) {
		return errWant
	}
	if text != "" {
		to.Limit.By = words[0]
	}
	return nil
}

// readLimits reads the limits of the values, whose form depends on the algorithm. That of all other values becomes the
// limit.
func readLimits(to *Settings, text string) error {
	if text == "" {
		return nil
	}
	words := strings.Fields(text)
	l := &to.Limit
	rates := map[string]ratelimit.Rate{}
	for _, entry := range strings.Split(strings.Join(words[1:], " "), ",") {
		value, rate, err := readEntry(l.Limit.Algorithm, strings.Fields(entry))
		if err != nil {
			return err
		}
		if _, twice := rates[value]; twice {
			return &ratelimit.FieldError{Field: "limits", Value: strings.TrimSpace(entry), Want: "given once: this value has a limit already"}
		}
		rates[value] = rate
	}
	fallback, found := rates[defaultValue]
	if !found {
		return errWant
	}
	setRate(&l.Limit, &fallback)
	l.ByValue = map[string]*ratelimit.Limit{}
	for value := range rates {
		rate := rates[value]
		if rate.Window != fallback.Window || rate.Calendar != fallback.Calendar || rate.Zone != fallback.Zone {
			return &ratelimit.FieldError{Value: text, Want: "limits in the same time: all values count on one row of a key"}
		}
		if value != defaultValue {
			l.ByValue[value] = &ratelimit.Limit{Events: rate.Events}
		}
	}
	return nil
}

// readEntry reads a value and its limit.
func readEntry(a ratelimit.Algorithm, words []string) (string, ratelimit.Rate, error) {
	if len(words) < 2 {
		return "", ratelimit.Rate{}, errWant
	}
	rate, err := parseRate(a, strings.Join(words[1:], " "))
	if wrong, ok := err.(*ratelimit.FieldError); ok {
		err = &ratelimit.FieldError{Field: "limits", Value: strings.Join(words, " "), Want: wrong.Want}
	}
	return words[0], rate, err
}

// parseRate reads a rate, or for limits InFlight how many requests may run at once.
func parseRate(a ratelimit.Algorithm, text string) (ratelimit.Rate, error) {
	if a != ratelimit.InFlight {
		return ratelimit.ParseRate(text)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return ratelimit.Rate{}, &ratelimit.FieldError{Field: "limit", Value: text, Want: "how many requests may run at once, such as 5, for in_flight"}
	}
	return ratelimit.Rate{Events: n}, nil
}

func setRate(l *ratelimit.Limit, rate *ratelimit.Rate) {
	l.Events, l.Window, l.Calendar, l.Zone = rate.Events, rate.Window, rate.Calendar, rate.Zone
}

// completeLimits gives the limits of values all that they have in common, and checks them.
func (l *ConfiguredLimit) completeLimits() error {
	if l.Settle != nil && l.Limit.Algorithm == ratelimit.InFlight {
		return &ratelimit.FieldError{Field: "settle", Value: l.Settle.Text, Want: "left out with in_flight: a slot ends with its request"}
	}
	if l.ByValue == nil {
		return nil
	}
	if l.Limit.Lease > 0 {
		return &ratelimit.FieldError{Field: "lease", Want: "left out: a lease is for one limit, and limits has several"}
	}
	for _, one := range l.ByValue {
		events := one.Events
		*one = l.Limit
		one.Events = events
		if err := one.Validate(); err != nil {
			return err
		}
	}
	return nil
}
