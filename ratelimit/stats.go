package ratelimit

// Stats counts what a Postgres store has done since it was made.
type Stats struct {
	Requests    int64 // calls of Take and Reset that went to the database
	Batches     int64 // round trips
	Statements  int64 // statements in them
	Blocked     int64 // requests refused without asking the database
	BlockedKeys int64 // keys that are known to be used up now
	GivenBack   int64 // charges given back because another limit refused
	Failures    int64 // batches of which no decision came
}

// Stats returns the counts as of now.
func (p *Postgres) Stats() Stats {
	p.mu.Lock()
	s := p.stats
	p.mu.Unlock()
	if p.blocked != nil {
		s.BlockedKeys = int64(p.blocked.size())
	}
	return s
}

// count notes a batch.
func (p *Postgres) count(calls []*Call, statements int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(calls) > 0 {
		p.stats.Batches++
	}
	p.stats.Statements += int64(statements)
	for _, c := range calls {
		if c.internal {
			p.stats.GivenBack += int64(len(c.Hits))
		} else if c.attempts == 0 {
			p.stats.Requests++
		}
	}
}
