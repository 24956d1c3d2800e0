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
	d := &host.DataSources{HasPolicy: s.Policy != nil}
	if recorded != nil {
		d.Recorded = *recorded
	}
	var err error
	if d.Limits, err = sourceOf(in, &dsns.Limits, dsns.Where, nil); err != nil {
		return nil, err
	}
	d.Policy, err = sourceOf(in, &dsns.Policy, dsns.Where, &d.Limits)
	if err == nil && s.Policy != nil && d.Policy.DSN == settings.MemoryDSN {
		want := settings.WantPostgres + ": the rules of a policy are in Postgres"
		err = &ratelimit.FieldError{Field: "dsn", Value: settings.MemoryDSN, Want: want}
	}
	if err != nil {
		return nil, partError(PolicyPart, "policy", &dsns.Policy, err)
	}
	if d.History, err = sourceOf(in, &dsns.History, dsns.Where, &d.Limits); err != nil {
		return nil, partError(HistoryPart, "history", &dsns.History, err)
	}
	d.History.HistoryOnly = d.History.DSN != d.Limits.DSN
	widest := s.setAudit(audit, recorded != nil)
	inMemory := d.History.DSN == settings.MemoryDSN
	d.Records = widest.Level != settings.AuditOff ||
		recorded != nil && (!inMemory || dsns.History.DSN != "")
	if d.Records && inMemory {
		want := settings.WantPostgres + ", or used with audit off: the history is in Postgres"
		err = &ratelimit.FieldError{Field: "dsn", Value: settings.MemoryDSN, Want: want}
		return nil, partError(HistoryPart, "history", &dsns.History, err)
	}
	return d, nil
}

// sourceOf returns the database of a DSN. A policy or a history without its own DSN is in limits, the
// database of the limits; limits is nil for the limits themselves.
func sourceOf(
	in settings.Store, dsn *host.DSN, where string, limits *host.DataSource,
) (host.DataSource, error) {
	if limits != nil && (dsn.DSN == "" || dsn.DSN == limits.DSN) {
		at := *limits
		at.Configured.HasPassword = at.Configured.HasPassword || dsn.HasPassword
		return at, nil
	}
	in.DSN = dsn.DSN
	in.From = dsn.From
	resolved, err := in.Resolve(where)
	return host.DataSource{Store: resolved, Configured: *dsn}, err
}

// partError adds the name of the part to an error if the part has its own DSN. Otherwise the error is about
// the DSN of the limits.
func partError(part int, name string, dsn *host.DSN, err error) error {
	if dsn.DSN == "" {
		return err
	}
	return &PartError{Zone: part, Name: name, Err: err}
}
