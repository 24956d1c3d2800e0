package main

import (
	"fmt"
	"log"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// fill sends one request for each of a million keys through a Caddy, and tells, the first time,
// by how much the Caddy and the database have grown.
func (b *bench) fill(p *proxy) {
	log.Print("sending requests for a million keys")
	c := newClient(p.address, hundred)
	defer c.close()
	c.run(5 * time.Second) // so long that the heap finds its size
	before, liveBefore := b.memory(p)
	wrong := b.sendInTurn(p, million)
	after, live := b.memory(p)
	var rows int
	var size float64
	must(fmt.Sscan(query(b.ctx, p.dsn, "SELECT count(*) || ' ' || pg_total_relation_size('rate_limit_ephemeral') FROM rate_limit_ephemeral"), &rows, &size))
	if rows+wrong < million {
		check(fmt.Errorf("only %d rows in the table", rows))
	}
	b.wrong(wrong, nameMemory)
	if len(b.figures) == 0 {
		b.figure(nameMemory, "%+.2f MB live, %+.1f MB resident (%.0f MB before) in Caddy for %d keys; %.0f bytes a key in Postgres, with indexes",
			live-liveBefore, after-before, before, rows, size/float64(rows))
	}
}

// memory is a Caddy's resident memory and its live heap after a garbage collection, in MB.
func (b *bench) memory(p *proxy) (resident, live float64) {
	b.askAdmin(p, "/debug/pprof/heap?gc=1")
	live = float64(b.memStats(p).HeapAlloc) / (1 << 20)
	return must(residentBytes(p.PID())) / (1 << 20), live
}

// residentBytes is the physical memory of a process, in bytes.
func residentBytes(pid int) (bytes float64, err error) {
	out, err := exec.Command("ps", "-o", "rss=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return 0, err
	}
	kilobytes, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	return 1024 * kilobytes, err
}
