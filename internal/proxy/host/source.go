package host

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
)

// DSN is the DSN of a part of a configuration.
type DSN struct {
	DSN      string // "" without one of its own
	Shown    string // what an error may show of it
	Password bool   // the configuration shows a password in it

	// From names the file or the placeholders that hold the DSN, and Renew reads them again. "" and nil mean
	// that the DSN does not change.
	From  string
	Renew func() (string, error)
}

// DataSource is a database, and how a handler uses it.
type DataSource struct {
	settings.Store        // resolved
	Shown          string // see DSN
	Password       bool
	Renew          func() (string, error)
}

// Current returns the DSN for a new connection.
func (s *DataSource) Current() (string, error) {
	if s.Renew == nil {
		return s.DSN, nil
	}
	return s.Renew()
}

// DataSources are the databases of a handler: for its counters, its policy and its history.
type DataSources struct {
	Limits, Policy, History DataSource

	HasPolicy bool
	Records   bool // there is a history
	Recorded  settings.History
}
