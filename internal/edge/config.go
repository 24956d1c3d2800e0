package edge

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Config is one limit as a configuration has it, in text.
type Config struct {
	Prefix            string // the limit's namespace
	Algorithm         string // "" is sliding_window
	Limit             string // as ratelimit.ParseRate takes it: "100 1m"
	Burst             string // "" is none
	Durable           bool
	SynchronousCommit bool
}

// ParseLimit reads and checks a limit. Errors are *ratelimit.FieldError, with
// the names prefix, algorithm, limit and burst.
func ParseLimit(c Config) (*ratelimit.Limit, error) {
	l := &ratelimit.Limit{Prefix: c.Prefix, Durable: c.Durable, SynchronousCommit: c.SynchronousCommit}
	var err error
	if l.Algorithm, err = ratelimit.ParseAlgorithm(c.Algorithm); err != nil {
		return nil, err
	}
	rate, err := ratelimit.ParseRate(c.Limit)
	if err != nil {
		return nil, err
	}
	l.Events, l.Window, l.Calendar, l.Zone = rate.Events, rate.Window, rate.Calendar, rate.Zone
	if c.Burst != "" {
		if l.Burst, err = ParseBurst(c.Burst); err != nil {
			return nil, err
		}
	}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	return l, nil
}

// ParseBurst reads the capacity of a token bucket.
func ParseBurst(text string) (int64, error) {
	burst, err := strconv.ParseInt(text, 10, 64)
	if err != nil || burst < 1 || burst > ratelimit.MaxEvents {
		return 0, &ratelimit.FieldError{Field: "burst", Value: text, Want: "a whole number from 1 to " + strconv.Itoa(ratelimit.MaxEvents)}
	}
	return burst, nil
}

const wantCost = "a whole number from 1 to 9007199254740992, or a placeholder that gives one"

// ParseCost checks the cost of a configuration: "" is 1. Text with a
// placeholder (a brace) gives 0: its value is known per request.
func ParseCost(text string) (int64, error) {
	if text == "" {
		return 1, nil
	}
	if strings.Contains(text, "{") {
		return 0, nil
	}
	cost, err := strconv.ParseInt(text, 10, 64)
	if err != nil || cost < 1 || cost > ratelimit.MaxEvents {
		return 0, &ratelimit.FieldError{Field: "cost", Value: text, Want: wantCost}
	}
	return cost, nil
}

// RequestCost is the cost that a placeholder gave for a request. What is not a
// whole number of 0 or more counts as 1: clients often choose it, and must not
// get a refund or a free pass out of it. Beyond int64 is more than any quota.
func RequestCost(text string) int64 {
	cost, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		if !errors.Is(err, strconv.ErrRange) {
			return 1
		}
	}
	if cost > 1<<62 {
		return 1 << 62
	}
	return int64(cost)
}

// SetCost gives a hit the cost that a placeholder gave for a request. One of 0
// needs something left, but takes nothing.
func SetCost(hit *ratelimit.Hit, text string) {
	hit.Cost = RequestCost(text)
	if hit.Cost == 0 {
		hit.Cost = 1
		hit.Peek = true
	}
}

// Doubts are what is wrong with a limit that holds all the same; cost is 0 where it
// is known per request.
func Doubts(l *ratelimit.Limit, cost int64) []string {
	var doubts []string
	if l.SynchronousCommit && !l.Durable {
		doubts = append(doubts, "synchronous_commit does nothing for a limit that is not durable")
	}
	if cost > l.Capacity() {
		doubts = append(doubts, "cost is above the whole quota: no request passes")
	}
	return doubts
}

// OnError is what happens to a request where no decision could be had.
type OnError string

// The values of OnError.
const (
	Allow OnError = "allow" // pass: the limits do not hold meanwhile
	Deny  OnError = "deny"  // answer 503
)

// ParseOnError reads an OnError; "" is Allow.
func ParseOnError(text string) (OnError, error) {
	switch text {
	case "", string(Allow):
		return Allow, nil
	case string(Deny):
		return Deny, nil
	}
	return "", &ratelimit.FieldError{Field: "on_error", Value: text, Want: "allow or deny"}
}

// DefaultTimeout is for the whole decision on a request.
const DefaultTimeout = 250 * time.Millisecond

const wantTimeout = "a duration from 1ms to 1m"

// ParseTimeout reads a timeout, a duration as ratelimit.ParseWindow takes it;
// "" is DefaultTimeout.
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

// CheckTimeout checks a timeout; 0 is DefaultTimeout.
func CheckTimeout(d time.Duration) (time.Duration, error) {
	if d == 0 {
		return DefaultTimeout, nil
	}
	if d < time.Millisecond || d > time.Minute {
		return 0, &ratelimit.FieldError{Field: "timeout", Value: d.String(), Want: wantTimeout}
	}
	return d, nil
}
