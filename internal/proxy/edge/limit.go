package edge

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const wantBurst = "a whole number from 1 to 9007199254740992"

// ParseBurst reads the burst of a token bucket or of GCRA.
func ParseBurst(text string) (int64, error) {
	burst, err := strconv.ParseInt(text, 10, 64)
	if err != nil || burst < 1 || burst > ratelimit.MaxEvents {
		return 0, &ratelimit.FieldError{Field: "burst", Value: text, Want: wantBurst}
	}
	return burst, nil
}

// WantLease says what the lease of a limit must be.
const WantLease = "a share of what is left from 0.1% to 50%, such as 5%"

// ParseLease reads the lease of a limit, such as "5%"; "" and "off" are none.
func ParseLease(text string) (float64, error) {
	if text == "" || text == "off" {
		return 0, nil
	}
	percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	share := percent / 100
	if err != nil || !strings.HasSuffix(text, "%") || math.IsNaN(share) || share < ratelimit.MinLease || share > ratelimit.MaxLease {
		return 0, &ratelimit.FieldError{Field: "lease", Value: text, Want: WantLease}
	}
	return share, nil
}

// LimitMissing is the error of a configuration that has zones and a setting of a limit of its
// own, such as a prefix or a key, but not the limit.
func LimitMissing(prefix, key string) error {
	stray := "other settings of a limit"
	if key != "" {
		stray = "key"
	}
	if prefix != "" {
		stray = "prefix"
	}
	return &ratelimit.FieldError{Field: "limit", Want: "given here, or drop the " + stray + ": the zones have limits of their own"}
}

// leastLeaseWindow is the shortest window of a limit with leases, see package lease.
const leastLeaseWindow = 200 * time.Millisecond

// Warning is what an operator should know of a valid setting.
type Warning struct {
	Field string // the setting's name
	Text  string // the rest of the sentence
}

// Warnings are what an operator should know of a valid limit. cost is 0 if each request
// gives its own.
func Warnings(l *ratelimit.Limit, cost int64) []Warning {
	var warnings []Warning
	if l.SynchronousCommit && !l.Durable {
		warnings = append(warnings, Warning{"synchronous_commit", "does nothing for a limit that is not durable"})
	}
	if l.Lease > 0 && l.RefillsEvenly() {
		warnings = append(warnings, Warning{"lease", "does nothing for a token_bucket with a burst below its events"})
	}
	if l.Lease > 0 && l.Window < leastLeaseWindow {
		warnings = append(warnings, Warning{"lease", "does nothing for a window below " + leastLeaseWindow.String()})
	}
	if cost > l.Capacity() {
		warnings = append(warnings, Warning{"cost", "is above the whole quota: no request passes"})
	}
	return warnings
}
