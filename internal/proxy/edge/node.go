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

// nodeRows are how many stores have each row of this process in a registry, also those that are being opened, by name and
// DSN.
var nodeRows = struct {
	mu     sync.Mutex // guards stores
	stores map[string]int
}{stores: map[string]int{}}

// node is the entry in the registry for the store of a database, which is opened later.
func (p *Proxy) node(d *Database) *registry.Node {
	s := &d.Settings
	name := s.NodeNameOf(p.Kind)
	key := name + " " + s.DSN
	nodeRows.mu.Lock()
	nodeRows.stores[key]++
	nodeRows.mu.Unlock()
	return &registry.Node{
		Name: name, Version: p.Version, Region: s.Region, Epoch: started, Notice: d.notice,
		Leave: func() bool {
			nodeRows.mu.Lock()
			defer nodeRows.mu.Unlock()
			nodeRows.stores[key]--
			last := nodeRows.stores[key] == 0
			if last {
				delete(nodeRows.stores, key)
			}
			return last
		},
	}
}
