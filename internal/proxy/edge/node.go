package edge

import (
	"os"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
)

// started is the epoch of this process.
var started = time.Now().UnixMicro()

// NodeNameOf is the name of this proxy: that of the settings, else the host name, a slash and kind.
func (s *StoreSettings) NodeNameOf(kind string) string {
	if s.NodeName != "" {
		return s.NodeName
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + "/" + kind
}

// nodeRow is a row of this process in a registry.
type nodeRow struct {
	stores int // how many stores have it, also those that are being opened
	totals *Totals
}

// nodeRows are the rows of this process since its start, by name and DSN.
var nodeRows = struct {
	mu   sync.Mutex // guards rows
	rows map[string]*nodeRow
}{rows: map[string]*nodeRow{}}

// node is the entry in the registry for the store of a database, which is opened later. It sets Totals.
func (p *Proxy) node(d *Database) *registry.Node {
	s := &d.Settings
	name := s.NodeNameOf(p.Kind)
	key := name + " " + s.DSN
	nodeRows.mu.Lock()
	defer nodeRows.mu.Unlock()
	row := nodeRows.rows[key]
	if row == nil {
		row = &nodeRow{totals: NewTotals()}
		nodeRows.rows[key] = row
	}
	row.stores++
	d.Totals = row.totals
	return &registry.Node{
		Name: name, Version: p.Version, Region: s.Region, Epoch: started, Notice: d.notice, Totals: func() registry.Totals { return row.totals.Read() },
		Leave: func() bool {
			nodeRows.mu.Lock()
			defer nodeRows.mu.Unlock()
			row.stores--
			return row.stores == 0
		},
	}
}
