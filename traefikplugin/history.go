package traefikplugin

import (
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// recordSettings say how a middleware records its requests.
type recordSettings struct {
	settings edge.HistorySettings
	database edge.StoreSettings
}

// recording reads how requests of a site are recorded, or returns nil. limits is where the limits are counted.
func (c *compiled) recording(limits edge.StoreSettings) (*recordSettings, error) {
	at, err := c.otherStore("history.", c.history, limits)
	if err != nil {
		return nil, err
	}
	inMemory := at.DSN == edge.MemoryDSN
	at.HistoryOnly = at.DSN != limits.DSN
	most, err := c.site.SetAudit(c.own["audit"], c.history != nil)
	if err != nil {
		return nil, named("", err)
	}
	if most.Level == history.AuditOff && (c.history == nil || inMemory) {
		return nil, nil
	}
	if inMemory {
		return nil, edge.HistoryNeedsPostgres()
	}
	return &recordSettings{settings: c.recorded, database: at}, nil
}

// readHistory reads the settings of a history.
func (c *Config) readHistory(to *compiled) error {
	if c.History == nil {
		return nil
	}
	to.history = edge.Values{}
	if err := checkOne("history", len(c.History)); err != nil || len(c.History) == 0 {
		return err
	}
	var err error
	if to.history, err = values("history.", c.History[0].Other, "retention", edge.HistoryTable, []edge.Setting{dsnFile}); err != nil {
		return err
	}
	retention, err := only("history.retention", c.History[0].Retention, edge.RetentionTable)
	if err != nil {
		return err
	}
	var read edge.Settings
	if err := edge.Read(edge.HistoryTable, to.history, &read); err != nil {
		return named("history.", err)
	}
	if err := edge.Read(edge.RetentionTable, retention, &read); err != nil {
		return named("history.retention.", err)
	}
	to.recorded = read.History
	return nil
}
