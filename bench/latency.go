package main

import (
	"context"
	"log"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// pacedLoad is a load that does not wait for answers: each request is sent when it is
// due, and its latency counts from then, even if no connection is free. wrk sends as
// fast as answers arrive, so it would send less while an answer is late, and not see how
// many requests that delays.
type pacedLoad struct {
	url         string
	rate        int // requests a second
	duration    time.Duration
	connections int
	key         func() string // of the next request; for concurrent use
	status      int           // of an answer that is as wanted
}

// run sends the load and waits for all answers. It returns the p99 of the requests that were
// sent after the first second, in milliseconds, and how many answers had another status than
// the wanted one, or none.
func (l pacedLoad) run(ctx context.Context) (p99 float64, wrong int) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // fewer collections, which make requests late
	attacker := vegeta.NewAttacker(vegeta.Connections(l.connections), vegeta.MaxConnections(l.connections), vegeta.Timeout(10*time.Second))
	defer context.AfterFunc(ctx, func() { attacker.Stop() })()
	request := func(t *vegeta.Target) error {
		t.Method, t.URL, t.Header = http.MethodGet, l.url, http.Header{keyHeader: {l.key()}}
		return nil
	}
	var metrics vegeta.Metrics
	began := time.Now()
	for result := range attacker.Attack(request, vegeta.Rate{Freq: l.rate, Per: time.Second}, l.duration, "") {
		if int(result.Code) != l.status {
			wrong++
		}
		if result.Timestamp.Sub(began) >= warmUp*time.Second {
			metrics.Add(result)
		}
	}
	check(ctx.Err())
	metrics.Close()
	return float64(metrics.Latencies.P99) / float64(time.Millisecond), wrong
}

// measureLatency compares Caddy's p99 without a limit, with one, and with the same limit and
// leases, at a rate that does not use the machine up: a third of what Caddy reaches without.
func (b *bench) measureLatency() {
	if !b.wants(nameLatency) {
		return
	}
	full := b.measureRow(&row{proxy: plainCaddy, load: thousand}, 1)[perSecond]
	load := pacedLoad{
		rate: int(full / 3), duration: time.Duration(warmUp+b.seconds) * time.Second, connections: thousand.connections, status: http.StatusOK,
		key: func() string { return keyName(rand.IntN(thousand.keys)) },
	}
	wrong := 0
	modes := []*proxySpec{plainCaddy, exactCaddy, leasedCaddy}
	found := map[*proxySpec][]float64{}
	for round := range b.rounds {
		for _, s := range modes {
			load.url = "http://" + b.startProxy(s).address + "/"
			p99, failed := load.run(b.ctx)
			found[s], wrong = append(found[s], p99), wrong+failed
			log.Printf("round %d of %d: %s: p99 %.2f ms", round+1, b.rounds, s.name, p99)
		}
		slices.Reverse(modes)
	}
	b.figure(nameLatency, "%d requests/s: %s ms without a limit", load.rate, spreadOf(found[plainCaddy]).text(2))
	for _, s := range []*proxySpec{exactCaddy, leasedCaddy} {
		b.figure(nameLatency+", "+s.name, "%s ms, %s ms more", spreadOf(found[s]).text(2), pairs(found[s], found[plainCaddy], difference).text(2))
	}
	b.wrong(wrong, nameLatency)
}
