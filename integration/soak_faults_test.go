//go:build soak

package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// fault is something that goes wrong during a soak.
type fault struct {
	name string
	// do causes the fault, and returns when the fault is over.
	do func(s *soak, e *event) error
	// decides is set if no request may lack a decision because of the fault.
	decides bool
	// delays is set if the database always answers, but a request waits for the answer, or for a connection.
	// It then waits for up to four timeouts.
	delays bool
	// overloads is set if the proxy has more requests than it can decide. It then refuses some requests of
	// all lanes with a limit.
	overloads bool
	// reloads is set if the listener of the proxy is replaced. Caddy then closes connections with requests
	// that it has not read.
	reloads bool
}

// event is a fault of the plan, and then its effects.
type event struct {
	fault  *fault
	at     time.Duration // planned
	lasts  time.Duration
	choice int // selects a proxy, a table or a lane

	began, ended time.Duration
	crashes      int    // how often the unlogged tables were emptied
	dropped      string // the table that was dropped, or ""
	lane         *lane  // the only lane without decisions; nil means all lanes
	proxy        int    // the index of the proxy that was killed, or -1
	killed       time.Duration
	clock        bool // the clock was set
	explained    int  // the number of responses that the event explains
}

func (e *event) String() string {
	return fmt.Sprintf("%6v  %s (%v, choice %d)", e.at, e.fault.name, e.lasts, e.choice)
}

// plan returns the faults of a soak, which depend only on seed and duration. No fault occurs again before all
// faults have occurred.
func plan(seed uint64, duration time.Duration) (events []*event) {
	random := rand.New(rand.NewPCG(seed, 0))
	var next []int
	for at := soakEvery / 2; at+soakEvery/2 <= duration; at += soakEvery {
		if len(next) == 0 {
			next = random.Perm(len(faults))
		}
		events = append(events, &event{fault: &faults[next[0]], at: at, proxy: -1, choice: random.IntN(60),
			lasts: time.Duration(1500+random.IntN(3500)) * time.Millisecond})
		next = next[1:]
	}
	return events
}

// serverFault returns the field do of fault n of serverFaults.
func serverFault(n int) func(s *soak, e *event) error {
	return func(s *soak, e *event) error {
		f := serverFaults(s.servers.server().Cluster, s.servers.all[0].network, s.servers.all[1].network)[n]
		if err := f.begin(); err != nil || f.end == nil {
			return err
		}
		time.Sleep(e.lasts)
		return f.end()
	}
}

// faults are all faults of a soak. After each fault, restoreServers waits for the servers.
var faults = []fault{
	{name: "kill -9 of Postgres", do: serverFault(1)},
	{name: "SIGSTOP of Postgres", do: serverFault(2)},
	{name: "restart of Postgres", do: serverFault(0)},
	{name: "black hole", do: serverFault(3)},
	{name: "latency of 1 s", delays: true, do: serverFault(4)},
	{name: "all connections reset", do: serverFault(5)},
	{name: "all backends terminated", do: serverFault(6)},
	{name: "rows locked for 5 s", do: func(s *soak, e *event) error {
		var tables []*lane
		for i := range lanes {
			if lanes[i].quota > 0 && !lanes[i].governed {
				tables = append(tables, &lanes[i])
			}
		}
		e.lane = tables[e.choice%len(tables)]
		return s.servers.run(s.servers.server(),
			fmt.Sprintf("BEGIN; SELECT 1 FROM %s WHERE prefix = '%s' FOR UPDATE; SELECT pg_sleep(5); "+
				"ROLLBACK", e.lane.table(), e.lane.name))
	}},
	{name: "a table dropped", do: func(s *soak, e *event) error {
		e.dropped = []string{"rate_limit_ephemeral", "rate_limit_durable"}[e.choice%2]
		return s.servers.run(s.servers.server(), "DROP TABLE "+e.dropped+" CASCADE")
	}},
	{name: "VACUUM FULL", do: func(s *soak, e *event) error {
		return s.servers.run(s.servers.server(), "VACUUM FULL rate_limit_ephemeral",
			"VACUUM FULL rate_limit_durable", "VACUUM FULL rate_limit_nodes")
	}},
	{name: "full disk", do: func(s *soak, e *event) error {
		server := s.servers.server()
		if err := server.faults.Set(0, true); err != nil {
			return err
		}
		time.Sleep(e.lasts / 2)
		failure := fmt.Sprint(s.servers.run(server, "CREATE TABLE soak_full AS SELECT 1"))
		for range 20 { // until the next file of the log cannot be created
			err := s.servers.run(server,
				"SELECT pg_logical_emit_message(false, 'soak', 'x'), pg_switch_wal()")
			if err != nil {
				break
			}
		}
		time.Sleep(e.lasts / 2)
		if !strings.Contains(failure, "No space left on device") {
			return fmt.Errorf("the disk is not full: %s", failure)
		}
		return server.faults.Set(0, false)
	}},
	{name: "max_connections used up", delays: true, do: func(s *soak, e *event) error {
		return useUpConnections(s.servers.server().DSN("postgres"), e.lasts)
	}},
	{name: "reloads", decides: true, reloads: true, do: func(s *soak, e *event) error {
		proxy := e.choice % soakProxies
		for range 20 {
			s.proxies[proxy].reload()
		}
		s.judgeGrowth(proxy)
		return nil
	}},
	{name: "overload", delays: true, overloads: true, do: func(s *soak, e *event) error {
		ctx, cancel := context.WithTimeout(context.Background(), e.lasts)
		defer cancel()
		s.load.overload(ctx, e.choice%soakProxies)
		return nil
	}},
	{name: "a reload that is rejected", decides: true, do: func(s *soak, e *event) error {
		s.proxies[e.choice%soakProxies].reject()
		return nil
	}},
	{name: "failover", do: func(s *soak, e *event) error {
		return s.servers.failOver(e.lasts / 3)
	}},
	{name: "the clock set back", do: func(s *soak, e *event) error {
		e.clock = true
		for _, back := range []time.Duration{time.Duration(1+e.choice) * time.Minute, 0} {
			for _, server := range s.servers.all {
				if err := server.faults.Set(back, false); err != nil {
					return err
				}
			}
			if back > 0 {
				time.Sleep(2 * e.lasts)
			}
		}
		return nil
	}},
	{name: "a proxy killed", decides: true, do: func(s *soak, e *event) error {
		e.proxy = e.choice % soakProxies
		p := s.proxies[e.proxy]
		e.killed = time.Since(s.load.began)
		if err := p.Kill(); err != nil {
			return err
		}
		s.judgeGrowth(e.proxy)
		time.Sleep(e.lasts / 2)
		p.start()
		return nil
	}},
}

// table returns the table of a lane's counters.
func (l *lane) table() string {
	if l.durable {
		return "rate_limit_durable"
	}
	return "rate_limit_ephemeral"
}
