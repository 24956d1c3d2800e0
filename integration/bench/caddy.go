package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// decisionTimeout is for one decision. What takes longer is answered 503, which
// the benchmark reports, rather than let through, which would look fast.
const decisionTimeout = "1s"

// zoneNames are the prefixes of a request's limits, the handler's own first.
var zoneNames = []string{"api", "team", "everybody"}

// caddyfile configures a Caddy that answers by itself, with or without a limit.
func caddyfile(address, admin, dsn string, l *limitSpec) string {
	var text strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	host, port, _ := strings.Cut(address, ":")
	say("{\n\tadmin %s\n\tpersist_config off\n\tauto_https off\n\tlog {\n\t\tlevel WARN\n\t}\n}", admin)
	say(":%s {\n\tbind %s", port, host)
	if l != nil {
		rule := func(indent string) {
			say("%skey {http.request.header.%s}", indent, keyHeader)
			say("%salgorithm %s", indent, l.algorithm)
			say("%slimit %s", indent, l.limit)
			if l.durable {
				say("%sdurable", indent)
			}
			if l.sync {
				say("%ssynchronous_commit", indent)
			}
		}
		say("\tpg_ratelimit %s {", zoneNames[0])
		say("\t\tdsn %q", dsn)
		say("\t\ttimeout %s\n\t\ton_error deny", decisionTimeout)
		rule("\t\t")
		for i := 1; i < l.zones; i++ {
			say("\t\tzone %s {", zoneNames[i])
			rule("\t\t\t")
			say("\t\t}")
		}
		say("\t}")
	}
	say("\trespond \"ok\"\n}")
	return text.String()
}

// startCaddy starts a Caddy and waits until it answers.
func (b *bench) startCaddy(ctx context.Context, s *proxySpec) (*proxy, error) {
	p := &proxy{spec: s}
	var err error
	if p.address, err = freeAddress(); err != nil {
		return nil, err
	}
	if p.admin, err = freeAddress(); err != nil {
		return nil, err
	}
	if p.dsn, err = b.dsnFor(ctx, s); err != nil {
		return nil, err
	}
	config := filepath.Join(b.dir, strings.ReplaceAll(s.name, " ", "-")+".Caddyfile")
	if err := os.WriteFile(config, []byte(caddyfile(p.address, p.admin, p.dsn, s.limit)), 0o600); err != nil {
		return nil, err
	}
	if p.program, err = startProgram(b.dir, s.name, b.caddy, "run", "--config", config, "--adapter", "caddyfile"); err != nil {
		return nil, err
	}
	return p, p.program.awaitOK(ctx, p.address)
}

// memStats are figures of a Go program's memory.
type memStats struct {
	mallocs int64 // objects allocated since its start
	live    int64 // bytes in use on the heap
}

// readMemStats asks a Caddy's admin endpoint. After a collection, live is what
// is still referred to.
func (p *proxy) readMemStats(ctx context.Context, collect bool) (memStats, error) {
	url := "http://" + p.admin + "/debug/pprof/heap?debug=1"
	if collect {
		url += "&gc=1"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return memStats{}, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return memStats{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return memStats{}, err
	}
	return parseMemStats(string(text))
}

func parseMemStats(text string) (m memStats, err error) {
	if m.mallocs, err = strconv.ParseInt(field(text, "# Mallocs = "), 10, 64); err != nil {
		return m, fmt.Errorf("heap profile: Mallocs: %w", err)
	}
	if m.live, err = strconv.ParseInt(field(text, "# HeapAlloc = "), 10, 64); err != nil {
		return m, fmt.Errorf("heap profile: HeapAlloc: %w", err)
	}
	return m, nil
}
