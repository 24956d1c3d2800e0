package edge

import "github.com/pgratelimit/pg-ratelimit/internal/plane/history"

// DSN is that of a part of a configuration.
type DSN struct {
	DSN      string // "" is none of its own
	Shown    string // what an error may show of it
	Password bool   // the configuration shows a password in it

	// From says which file or placeholders hold the DSN, and Renew reads them again. "" and nil mean that it does not change.
	From  string
	Renew func() (string, error)
}

// Place is a database, and how it is used.
type Place struct {
	StoreSettings        // resolved
	Shown         string // see DSN
	Password      bool
	Renew         func() (string, error)
}

// Current is the DSN for a new connection.
func (p *Place) Current() (string, error) {
	if p.Renew == nil {
		return p.DSN, nil
	}
	return p.Renew()
}

// Places are where a site counts, and where its policy and its history are.
type Places struct {
	Limits, Policy, History Place

	Records  bool // there is a history
	Recorded HistorySettings
}

// DSNs are those of a configuration.
type DSNs struct {
	Limits, Policy, History DSN
	Where                   string // where they can be set, for errors; see StoreSettings.Resolve
}

// The parts of a configuration in a PartError that are no zones.
const (
	PolicyPart  = -1
	HistoryPart = -2
)

// Places finds out where a site counts, and where its policy and its history are. in has the settings of all these
// databases, without the DSNs. audit is the setting of the handler. recorded has the settings of the history. If recorded
// is nil, there is a history only if an audit says so.
func (s *Site) Places(in StoreSettings, dsns *DSNs, audit string, recorded *HistorySettings) (*Places, error) {
	p := &Places{}
	if recorded != nil {
		p.Recorded = *recorded
	}
	var err error
	if p.Limits, err = placeOf(in, &dsns.Limits, dsns.Where); err != nil {
		return nil, err
	}
	if p.Policy, err = p.other(in, &dsns.Policy, dsns.Where); err == nil && s.Policy != nil && p.Policy.DSN == MemoryDSN {
		err = PolicyNeedsPostgres()
	}
	if err != nil {
		return nil, partError(PolicyPart, "policy", &dsns.Policy, err)
	}
	if p.History, err = p.other(in, &dsns.History, dsns.Where); err != nil {
		return nil, partError(HistoryPart, "history", &dsns.History, err)
	}
	p.History.HistoryOnly = p.History.DSN != p.Limits.DSN
	var most history.Audit
	if most, err = s.SetAudit(audit, recorded != nil); err != nil {
		return nil, err
	}
	inMemory := p.History.DSN == MemoryDSN
	p.Records = most.Level != history.AuditOff || recorded != nil && (!inMemory || dsns.History.DSN != "")
	if p.Records && inMemory {
		return nil, partError(HistoryPart, "history", &dsns.History, HistoryNeedsPostgres())
	}
	return p, nil
}

// placeOf is the database of a DSN.
func placeOf(s StoreSettings, dsn *DSN, where string) (Place, error) {
	s.DSN = dsn.DSN
	s.From = dsn.From
	resolved, err := s.Resolve(where)
	return Place{StoreSettings: resolved, Shown: dsn.Shown, Password: dsn.Password, Renew: dsn.Renew}, err
}

// other is the database of a policy or a history, which is that of the limits without a DSN of its own.
func (p *Places) other(s StoreSettings, dsn *DSN, where string) (Place, error) {
	if dsn.DSN == "" || dsn.DSN == p.Limits.DSN {
		at := p.Limits
		at.Password = at.Password || dsn.Password
		return at, nil
	}
	return placeOf(s, dsn, where)
}

// partError is the error of a part with a DSN of its own; else it is about that of the limits.
func partError(part int, name string, dsn *DSN, err error) error {
	if dsn.DSN == "" {
		return err
	}
	return &PartError{Zone: part, Name: name, Err: err}
}
