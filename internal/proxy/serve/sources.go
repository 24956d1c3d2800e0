package serve

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// DSNs holds the DSNs of a configuration.
type DSNs struct {
	Limits, Policy, History host.DSN
	Where                   string // see settings.Connection.Resolve
}

// DataSources returns the databases of a site's counters, policy and history. shared has the settings that
// these databases share, without a DSN. audit is the handler's setting. history has the settings of the
// history. If history is nil, the site has a history only if an audit setting requires it.
func (s *Site) DataSources(
	shared settings.Connection, dsns *DSNs, audit string, history *settings.History,
) (*host.DataSources, error) {
	limits, err := sourceOf(shared, &dsns.Limits, dsns.Where)
	if err != nil {
		return nil, err
	}
	d := &host.DataSources{Limits: *limits, Audit: option.Audit{Level: option.AuditOff}}
	if history != nil {
		d.Audit.Level = option.AuditDenied
	}
	d.Audit, _ = option.ParseAudit(audit, d.Audit)
	records := s.Policy != nil && d.Audit.Level != option.AuditOff
	for _, z := range s.Zones {
		records = records || z.auditOf(d.Audit).Level != option.AuditOff
	}
	if s.Policy != nil {
		why := ": the rules of a policy are in Postgres"
		if d.Policy, err = partSource(shared, dsns, PolicyPart, limits, why); err != nil {
			return nil, err
		}
	}
	if history != nil {
		d.Recorded = *history
		records = records || limits.DSN != settings.MemoryDSN || dsns.History.DSN != ""
	}
	if records {
		why := ": a history is in Postgres, and audit off needs none"
		if d.History, err = partSource(shared, dsns, HistoryPart, limits, why); err != nil {
			return nil, err
		}
		d.History.HistoryOnly = d.History.DSN != limits.DSN
	}
	return d, nil
}

// partSource returns the database of a policy or a history, which is in Postgres. Without a DSN of the part,
// the result is limits, the database of the counters, and an error does not name the part. why explains an
// error about the DSN memory.
func partSource(
	shared settings.Connection, dsns *DSNs, part int, limits *host.DataSource, why string,
) (*host.DataSource, error) {
	name, dsn := "policy", &dsns.Policy
	if part == HistoryPart {
		name, dsn = "history", &dsns.History
	}
	at := *limits
	at.Configured.HasPassword = at.Configured.HasPassword || dsn.HasPassword
	var err error
	if dsn.DSN != "" && dsn.DSN != limits.DSN {
		own, failure := sourceOf(shared, dsn, dsns.Where)
		at = *own
		err = failure
	}
	if err == nil && at.DSN == settings.MemoryDSN {
		err = option.Invalid("dsn", settings.MemoryDSN, settings.WantPostgres+why)
	}
	if err != nil && dsn.DSN != "" {
		err = &PartError{Part: part, Name: name, Err: err}
	}
	return &at, err
}

// sourceOf returns the database of a DSN.
func sourceOf(shared settings.Connection, dsn *host.DSN, where string) (*host.DataSource, error) {
	shared.DSN = dsn.DSN
	shared.Source = dsn.From
	resolved, err := shared.Resolve(where)
	return &host.DataSource{Connection: resolved, Configured: *dsn}, err
}
