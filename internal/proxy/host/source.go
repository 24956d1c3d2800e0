package host

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// DSN is a configured DSN with its origin.
type DSN struct {
	DSN         string // "" if it is not configured
	Shown       string // the text for errors, without a password
	HasPassword bool   // the configuration contains a password

	// From names the file or the placeholders that hold the DSN, and Renew reads the DSN from there again. If
	// the DSN does not change, From is "" and Renew is nil.
	From  string
	Renew func() (string, error)
}

// DataSource describes a database, with a handler's settings for it.
type DataSource struct {
	settings.Connection // resolved
	Configured          DSN
}

// Current returns the DSN for a new connection.
func (s *DataSource) Current() (string, error) {
	if s.Configured.Renew == nil {
		return s.DSN, nil
	}
	return s.Configured.Renew()
}

// DataSources holds the databases of a handler's counters, policy and history.
type DataSources struct {
	Limits          DataSource
	Policy, History *DataSource // nil without a policy or a history
	Recorded        settings.History
	// Audit is the audit setting of the handler, which is the default for its limits.
	Audit option.Audit
	// Anonymous is the tier of requests without an API key that pass by choice, or "" if none pass.
	Anonymous string
}
