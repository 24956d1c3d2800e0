package main

import (
	"errors"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// proxy is a Caddy or a Traefik that runs.
type proxy struct {
	*harness.Process
	spec    *proxySpec
	address string
	admin   string // the address of a Caddy's admin endpoint
	dsn     string // where it counts; "" without a limit of pg_ratelimit
	redis   string // the address of the Redis where it counts, or ""
}

// decisionTimeout is for one decision. A slower one is answered with 503, which the
// benchmark reports. Letting the request pass would look fast.
const decisionTimeout = "1s"

// startProxy starts a proxy, unless it runs already, and waits until it answers.
func (b *bench) startProxy(s *proxySpec) *proxy {
	if p := b.proxies[s]; p != nil {
		return p
	}
	log.Print("starting ", s.name)
	p := &proxy{spec: s, address: must(harness.FindAddress()), admin: must(harness.FindAddress())}
	switch {
	case s.shares != nil:
		p.dsn = b.startProxy(s.shares).dsn
	case s.inPostgres():
		p.dsn = b.postgres.create(b.ctx) // of its own: no row works on what another has left
		if s.limit.policy {
			log.Print("filling the tables of the policy")
			query(b.ctx, p.dsn, schema.File, policyRowsOf(million))
		}
	case s.inRedis():
		p.redis = b.startRedis()
	case s.ours():
		p.dsn = "memory"
	}
	if s.traefik {
		p.Process = b.startTraefik(p)
	} else {
		p.Process = b.startCaddy(p)
	}
	b.proxies[s] = p
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
		delete(b.proxies, s)
		check(errors.Join(err, p.Kill()))
	}
	return p
}

// file writes a file with a new name into the temporary folder, and returns its path.
func (b *bench) file(ending, text string) string {
	f := must(os.CreateTemp(b.dir, "*."+ending))
	must(f.WriteString(text))
	check(f.Close())
	return f.Name()
}

// launch runs a server in a folder.
func (b *bench) launch(name, dir, path string, args ...string) *harness.Process {
	return must(harness.Launch(harness.Program{Name: name, Path: path, Args: args, Dir: dir, Env: []string{"XDG_CONFIG_HOME=" + b.dir, "XDG_DATA_HOME=" + b.dir}}))
}

// stopProxies stops all proxies, and Redis.
func (b *bench) stopProxies() (err error) {
	for _, p := range b.proxies {
		err = errors.Join(err, p.Stop())
	}
	clear(b.proxies)
	if b.redis != nil {
		err = errors.Join(err, b.redis.Stop())
		b.redis = nil
	}
	return err
}
