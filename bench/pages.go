package main

import (
	"io"
	"log"
	"net/http"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// openPages is how many pages are open.
const openPages = 50

// watched are proxies with a history, which count who asks while a page is open.
var watched = []*proxySpec{
	{name: "Caddy", limit: &limitSpec{limit: ample, lease: share, options: "audit denied"}},
	{name: "Traefik", traefik: true, limit: &limitSpec{limit: ample, lease: share, options: "audit denied"}},
}

// measurePages compares a load while pages are open with the same load while none is, once in each round. The
// clients leave some of the machine free.
func (b *bench) measurePages() {
	if !b.wants(namePages) {
		return
	}
	for _, s := range watched {
		p := b.startProxy(s)
		calm := &row{proxy: s, load: load{"calm", thousand.keys, thousand.connections}}
		samples := map[bool][]sample{}
		server, took, wrongs := 0.0, 0.0, 0.0
		for round := range b.rounds {
			for turn := range 2 {
				open := (round+turn)%2 == 1
				end := func() float64 { return 0 }
				if open {
					end = b.openPages(p)
				}
				began := time.Now()
				one := b.measureRow(calm, round)
				if open {
					took += time.Since(began).Seconds()
				}
				server += end()
				samples[open] = append(samples[open], one)
				wrongs += one[wrong]
				log.Printf("round %d of %d: %s, pages open: %v: %.0f requests/s, p99 %.2f ms", round+1, b.rounds, s.name, open, one[perSecond], one[p99])
			}
		}
		values := func(open bool, title string) (all []float64) {
			for _, s := range samples[open] {
				all = append(all, s[title])
			}
			return all
		}
		compared := func(title string) string { return pairs(values(true, title), values(false, title), quotient).text(2) }
		b.figure(namePages+", "+s.name, "%s requests/s: p99 %s ms, × %s with the pages; CPU of a request in the proxy × %s, in the database × %s; the server of the pages takes %.1f %% of a core",
			number(spreadOf(values(false, perSecond)).median, 0), spreadOf(values(false, p99)).text(2), compared(p99), compared(cpuProxy), compared(cpuStore), server/took/1e4)
		b.wrong(int(wrongs), namePages+", "+s.name)
	}
}

// openPages opens pages on the database of a proxy, and waits until the proxy reports. end closes them, waits
// until it does not, and returns the CPU time of their server in microseconds.
func (b *bench) openPages(p *proxy) (end func() float64) {
	address := must(harness.FindAddress())
	server := b.launch("pages", b.dir, b.buildCaddy(p.spec), "pg-ratelimit", "page", "--listen", address, "--dsn", p.dsn)
	check(server.WaitFor("the pages", func() bool {
		response, err := http.Get("http://" + address + "/api/session")
		return err == nil && response.Body.Close() == nil
	}))
	var streams sync.WaitGroup
	for range openPages {
		response := must(http.Get("http://" + address + "/api/events")) //nolint:bodyclose // the goroutine does
		streams.Go(func() {
			_, _ = io.Copy(io.Discard, response.Body) // until the server ends
			_ = response.Body.Close()
		})
	}
	await := func(reports string) {
		for query(b.ctx, p.dsn, "SELECT count(live) FROM rate_limit_nodes") != reports {
			time.Sleep(50 * time.Millisecond)
		}
	}
	await("1")
	before := cpuTime(server.PID())
	return func() float64 {
		cpu := cpuTime(server.PID()) - before
		check(server.Stop())
		streams.Wait()
		query(b.ctx, p.dsn, "UPDATE rate_limit_nodes SET watched = now()")
		await("0")
		return cpu
	}
}
