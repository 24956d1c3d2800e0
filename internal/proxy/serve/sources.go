package serve

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// DSNs holds the DSNs of a configuration.
type DSNs struct {
	Limits, Policy, History host.DSN
	Where                   string // the places for DSNs, for errors; see settings.Store.Resolve
}

// DataSources returns the databases of a site's counters, policy and history. in has the settings that all of
// them share, without DSNs. audit is the handler's setting. recorded has the settings of the history. If
// recorded is nil, the site has a history only if an audit setting requires one.
func (s *Site) DataSources(
	in settings.Store, dsns *DSNs, audit string, recorded *settings.History,
) (*host.DataSources, error) {
	limits, err := sourceOf(in, &dsns.Limits, dsns.Where)
	if err != nil {
		return nil, err
	}
	d := &host.DataSources{Limits: *limits}
	if s.Policy != nil {
		d.Policy, err = partSource(in, dsns, &dsns.Policy, limits, ": the rules of a policy are in Postgres")
		if err != nil {
			return nil, partError(PolicyPart, "policy", &dsns.Policy, err)
		}
	}
	records := s.setAudit(audit, recorded != nil).Level != settings.AuditOff
	if recorded != nil {
		d.Recorded = *recorded
		records = records || limits.DSN != settings.MemoryDSN || dsns.History.DSN != ""
	}
	if records {
		d.History, err = partSource(in, dsns, &dsns.History, limits,
			", or used with audit off: the history is in Postgres")
		if err != nil {
			return nil, partError(HistoryPart, "history", &dsns.History, err)
		}
		d.History.HistoryOnly = d.History.DSN != limits.DSN
	}
	return d, nil
}

// partSource returns the database of a policy or a history, which is in Postgres. Without its own DSN, it is
// in limits, the database of the counters. why explains an error about the DSN memory.
func partSource(
	in settings.Store, dsns *DSNs, dsn *host.DSN, limits *host.DataSource, why string,
) (*host.DataSource, error) {
	at := *limits
	at.Configured.HasPassword = at.Configured.HasPassword || dsn.HasPassword
	if dsn.DSN != "" && dsn.DSN != limits.DSN {
		own, err := sourceOf(in, dsn, dsns.Where)
		if err != nil {
			return nil, err
		}
		at = *own
	}
	if at.DSN == settings.MemoryDSN {
		want := settings.WantPostgres + why
		return nil, &ratelimit.FieldError{Field: "dsn", Value: settings.MemoryDSN, Want: want}
	}
	return &at, nil
}

// sourceOf returns the database of a DSN.
func sourceOf(in settings.Store, dsn *host.DSN, where string) (*host.DataSource, error) {
	in.DSN = dsn.DSN
	in.From = dsn.From
	resolved, err := in.Resolve(where)
	return &host.DataSource{Store: resolved, Configured: *dsn}, err
}

// partError adds the name of the part to an error if the part has its own DSN. Otherwise the error is about
// the DSN of the limits.
func partError(part int, name string, dsn *host.DSN, err error) error {
	if dsn.DSN == "" {
		return err
	}
	return &PartError{Zone: part, Name: name, Err: err}
}
