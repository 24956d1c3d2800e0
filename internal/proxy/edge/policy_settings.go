package edge

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// DefaultTier is the tier of requests without another one.
	DefaultTier = "anonymous"

	// DefaultRefresh is how often a proxy asks the database for changes of the policy.
	DefaultRefresh = 500 * time.Millisecond

	// DefaultMaxIdentities is how many API keys and users a proxy remembers.
	DefaultMaxIdentities = 100000

	wantRefresh    = "a duration from 50ms to 1m"
	wantUnknownKey = "reject or anonymous"
)

// MaxIdentities is the range of PolicySettings.MaxIdentities.
var MaxIdentities = Bound{"max_identities", 10000000}

// PolicySettings say how a proxy keeps up with the policy in its database. Handlers on one
// database with equal settings share what they know of the policy.
type PolicySettings struct {
	Refresh       time.Duration // between two questions for changes
	MaxIdentities int           // the most API keys and users to remember
}

// ParseRefresh reads PolicySettings.Refresh; "" is the default.
func ParseRefresh(text string) (time.Duration, error) {
	if text == "" {
		return DefaultRefresh, nil
	}
	d, err := ratelimit.ParseWindow(text)
	if err != nil || !isRefresh(d) {
		return 0, &ratelimit.FieldError{Field: "refresh", Value: text, Want: wantRefresh}
	}
	return d, nil
}

// CheckRefresh returns a refresh that was set as a duration; 0 is the default.
func CheckRefresh(d time.Duration) (time.Duration, error) {
	if d == 0 {
		return DefaultRefresh, nil
	}
	if !isRefresh(d) {
		return 0, &ratelimit.FieldError{Field: "refresh", Value: d.String(), Want: wantRefresh}
	}
	return d, nil
}

func isRefresh(d time.Duration) bool { return d >= 50*time.Millisecond && d <= time.Minute }

// ParseUnknownKey reads what happens to a request with an API key that is not valid: reject
// refuses it, which is the default, and anonymous treats it as one without a key.
func ParseUnknownKey(text string) (reject bool, err error) {
	switch text {
	case "", "reject":
		return true, nil
	case "anonymous":
		return false, nil
	}
	return false, &ratelimit.FieldError{Field: "unknown_key", Value: text, Want: wantUnknownKey}
}

// CheckPolicyRows returns an error for a limit of a configuration that could have a row in
// common with a limit of the policy. A request that is charged to both would be on one row
// twice.
func CheckPolicyRows(l *ratelimit.Limit) error {
	for _, reserved := range []string{RulePrefix, BanPrefix} {
		if len(l.Prefix) >= len(reserved) && l.Prefix[:len(reserved)] == reserved {
			return &ratelimit.FieldError{Field: "prefix", Value: l.Prefix, Want: "a name that does not begin with " + reserved + ": the counters of the policy begin with " + reserved}
		}
	}
	return nil
}

const (
	// RulePrefix begins the prefixes of the policy's limits.
	RulePrefix = "rule/"

	// BanPrefix begins the prefixes under which refusals are counted for bans.
	BanPrefix = "ban/"
)

// PolicyNeedsPostgres is the error of a policy with MemoryDSN.
func PolicyNeedsPostgres() error {
	return &ratelimit.FieldError{Field: "dsn", Value: MemoryDSN, Want: "a Postgres URL or key=value pairs: the rules of a policy are in Postgres"}
}
