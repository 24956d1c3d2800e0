package edge

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// DefaultTier is the tier of requests without another one.
const DefaultTier = "anonymous"

// readUnknownKey reads what happens to a request with an API key that is not valid.
func readUnknownKey(to *Settings, text string) error {
	to.RejectUnknown = text == "reject"
	if text != "reject" && text != "anonymous" {
		return errWant
	}
	return nil
}

// CheckPolicyRows returns an error for a limit of a configuration that could have a row in
// common with a limit of the policy. A request that is charged to both would be on one row
// twice.
func CheckPolicyRows(l *ratelimit.Limit) error {
	if strings.HasPrefix(l.Prefix, RulePrefix) {
		return &ratelimit.FieldError{Field: "prefix", Value: l.Prefix, Want: "a name that does not begin with " + RulePrefix +
			": the counters of the policy begin with " + RulePrefix}
	}
	return nil
}

// RulePrefix begins the prefixes of the policy's limits.
const RulePrefix = "rule/"

// PolicyNeedsPostgres is the error of a policy with MemoryDSN.
func PolicyNeedsPostgres() error {
	return &ratelimit.FieldError{Field: "dsn", Value: MemoryDSN, Want: wantPostgres + ": the rules of a policy are in Postgres"}
}
