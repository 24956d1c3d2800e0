package traefikplugin

import (
	"reflect"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// recordSettings say how a middleware records its requests.
type recordSettings struct {
	settings edge.HistorySettings
	database edge.StoreSettings
}

// recording reads how requests of a site are recorded, or returns nil. limits is where the limits are counted.
func (c *Config) recording(site *edge.Site, limits edge.StoreSettings) (*recordSettings, error) {
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
	most, err := site.SetAudit(c.Audit, c.History != nil)
	if err != nil {
		return nil, named("", err)
	}
	if most.Level == history.AuditOff && (c.History == nil || inMemory) {
		return nil, nil
	}
	if inMemory {
		return nil, edge.HistoryNeedsPostgres()
	}
	return &recordSettings{settings: settings, database: at}, nil
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
