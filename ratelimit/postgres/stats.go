package postgres

import "sync"

// Stats counts what a Store has done since it was made.
type Stats struct {
	Requests    int64 // calls of Take and Reset that went to the database
	Batches     int64 // batches in which they went
	Statements  int64 // statements, retries included
	RolledBack  int64 // transactions undone because a request of several limits did not fit
	Blocked     int64 // requests refused without asking the database
	BlockedKeys int64 // keys that are known to be used up now
	Leased      int64 // requests that passed without asking the database, see Limit.Lease
	LeasedUnits int64 // units that are charged in advance now
	Failures    int64 // batches for which no decision came
}

// counts adds up Stats.
type counts struct {
	mu    sync.Mutex
	stats Stats
}

// add adds some stats, except BlockedKeys, Leased and LeasedUnits.
func (c *counts) add(s Stats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Requests += s.Requests
	c.stats.Batches += s.Batches
	c.stats.Statements += s.Statements
	c.stats.RolledBack += s.RolledBack
	c.stats.Blocked += s.Blocked
	c.stats.Failures += s.Failures
}

func (c *counts) get() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}
