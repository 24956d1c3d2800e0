package traefikplugin

import (
	"reflect"
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// recordSettings say how a middleware records its requests.
type recordSettings struct {
	settings edge.HistorySettings
	database edge.StoreSettings
	audit    history.Audit
}

// recording reads how requests are recorded, or returns nil. limits is where the limits are counted.
func (c *Config) recording(limits edge.StoreSettings) (*recordSettings, error) {
	settings, err := c.history()
	if err != nil {
		return nil, err
	}
	at := limits
	if len(c.History) > 0 {
		if at, err = c.otherStore("history.", c.History[0].DSN, c.History[0].DSNFile, limits); err != nil {
			return nil, err
		}
	}
	inMemory := at.DSN == edge.MemoryDSN
	at.HistoryOnly = at.DSN != limits.DSN
	unset := history.Audit{Level: history.AuditOff}
	if c.History != nil {
		unset.Level = history.AuditDenied
	}
	own, err := edge.ParseAudit(c.Audit, unset)
	if err != nil {
		return nil, named("", err)
	}
	// All limits are on all requests: the audit that records most is used.
	most := history.Audit{Level: history.AuditOff}
	if c.Policy != nil || c.Limit != "" || c.Limits != "" {
		most = own
	}
	for i := range c.Zones {
		audit, err := edge.ParseAudit(c.Zones[i].Audit, own)
		if err != nil {
			return nil, named("zones["+strconv.Itoa(i)+"].", err)
		}
		most = edge.MoreAudit(most, audit)
	}
	if most.Level == history.AuditOff && (c.History == nil || inMemory) {
		return nil, nil
	}
	if inMemory {
		return nil, edge.HistoryNeedsPostgres()
	}
	return &recordSettings{settings: settings, database: at, audit: most}, nil
}

// history reads the settings of a history. Errors have the names of package edge.
func (c *Config) history() (edge.HistorySettings, error) {
	if len(c.History) == 0 {
		return edge.HistorySettings{Node: "", Region: ""}, nil
	}
	if err := checkOne("history", len(c.History)); err != nil {
		return edge.HistorySettings{}, named("", err)
	}
	s, err := c.History[0].read()
	if err != nil {
		return s, named("history.", err)
	}
	return s, nil
}

// read reads the settings of a history. Errors have the names of package edge.
func (c *History) read() (edge.HistorySettings, error) {
	var read edge.Settings
	if err := edge.Read(edge.HistoryTable, reflect.ValueOf(c), &read); err != nil {
		return read.History, err
	}
	if err := checkOne("retention", len(c.Retention)); err != nil {
		return read.History, err
	}
	for i := range c.Retention {
		if err := edge.Read(edge.RetentionTable, reflect.ValueOf(&c.Retention[i]), &read); err != nil {
			return read.History, named("retention.", err)
		}
	}
	return read.History, nil
}

// recorder is how a middleware records its requests. It does not change.
type recorder struct {
	writer    *history.Writer
	registry  *registry
	audit     history.Audit
	counts    bool // requests that pass are in the metrics and the usage, and never in the audit log
	addresses *addresses
	policy    *compiledPolicy // nil without a policy

	// The API key of the policy, or a key that is hashed by the configuration, has a placeholder
	// of the host, or of the path, which is then not recorded.
	hidesHost, hidesPath bool
}

// newRecorder returns a recorder. p may be nil.
func newRecorder(w *history.Writer, audit history.Audit, a *addresses, p *compiledPolicy, zones []*zone) *recorder {
	r := &recorder{writer: w, audit: audit, counts: audit.Level < history.AuditSample, addresses: a, policy: p}
	if p != nil {
		hide(r, p.keyText)
	}
	for _, z := range zones {
		if z.hashed {
			hide(r, z.key)
		}
	}
	return r
}

// hide leaves out of records what gives a part of a secret.
func hide(r *recorder, secret template) {
	for i := range secret {
		switch secret[i].from {
		case fromHost, fromHostPort, fromLabel:
			r.hidesHost = true
		case fromPath, fromURI, fromDir, fromFile, fromPart:
			r.hidesPath = true
		}
	}
}
