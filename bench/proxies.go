package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// proxy is a running Caddy or Traefik.
type proxy struct {
	*harness.Process
	row      *row // its configuration
	address  string
	database *database // its Postgres, or nil
	dsn      string    // its database; "" without a limit of pg_ratelimit
	upstream string    // the URL of the server behind it
	redis    string    // the address of its Redis, or ""
	decider  *proxy    // for a Traefik with forwardAuth, the Caddy that enforces the limit; else nil
}

// decisionTimeout bounds a decision. The limits have on_error deny: a request with a slower decision gets
// status 503, which the benchmark reports. If the request were admitted instead, the limiter would look fast.
const decisionTimeout = "1s"

// startProxy starts the proxy of a row on the Postgres b.postgres[server], after the proxy's decider.
func (b *bench) startProxy(r *row, server int) *proxy {
	if b.upstream == "" {
		b.upstream = httptest.NewServer(http.HandlerFunc(respondAsUpstream)).URL
	}
	p := &proxy{row: r, address: must(harness.FindAddress()), upstream: b.upstream}
	switch {
	case r.inRedis():
		p.redis = b.startRedis()
	case r.isOwnLimit():
		p.database = b.postgres[server]
		if r.limit.policy {
			p.dsn = p.database.withPolicy(b.ctx, b.schema(r), r.limit.budgets)
		} else {
			p.dsn = p.database.create(b.ctx) // so that no measurement finds counters of another
		}
	}
	if r.isOwnLimit() && r.limit.forwardAuth {
		p.decider = &proxy{row: r, address: must(harness.FindAddress()), dsn: p.dsn}
		p.decider.start(b, b.startCaddy)
	}
	start := b.startCaddy
	switch {
	case r.gateway:
		start = b.startGateway
	case r.traefik:
		start = b.startTraefik
	}
	p.start(b, start)
	return p
}

// start starts p with the function start, and waits until p responds.
func (p *proxy) start(b *bench, start func(*proxy) *harness.Process) {
	p.Process = start(p)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	err := p.WaitFor("200 from "+p.address, func() bool {
		response, err := client.Do(harness.Get("http://"+p.address+"/", keyHeader, "ready"))
		if err != nil {
			check(b.ctx.Err())
			return false
		}
		return response.Body.Close() == nil && response.StatusCode == http.StatusOK
	})
	if err != nil {
		check(errors.Join(err, p.Kill()))
	}
	b.proxies = append(b.proxies, p)
}

// writeTemp writes a file with a new name into the temporary folder, and returns its path.
func (b *bench) writeTemp(ending, text string) string {
	f := must(os.CreateTemp(b.dir, "*."+ending))
	must(f.WriteString(text))
	check(f.Close())
	return f.Name()
}

// launch starts a program in a folder.
func (b *bench) launch(name, dir, path string, args ...string) *harness.Process {
	return must(harness.Launch(harness.Program{Name: name, Path: path, Args: args, Dir: dir,
		Env: []string{"XDG_CONFIG_HOME=" + b.dir, "XDG_DATA_HOME=" + b.dir}}))
}

// stopProxies stops all proxies, and complains about doubtful lines in their logs.
func (b *bench) stopProxies() {
	for _, p := range b.proxies {
		stop := p.Stop
		if p.row.gateway { // it handles no signal
			stop = p.Kill
		}
		if err := stop(); err != nil {
			b.complain("%v", err)
		}
		if line := doubtfulLine.FindString(p.Log()); line != "" {
			b.complain("%s logged: %s", p.row.name, line)
		}
	}
	b.proxies = nil
}

// stopServers stops all proxies, Postgres and Redis.
func (b *bench) stopServers() (err error) {
	b.stopProxies()
	for _, d := range b.postgres {
		err = errors.Join(err, d.stop())
	}
	if b.redis != nil {
		err = errors.Join(err, b.redis.Stop())
		b.redis = nil
	}
	return err
}
