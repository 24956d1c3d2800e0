package main

import (
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// openPages is how many pages are open.
const openPages = 50

// openPages opens pages on the database of a proxy, and waits until the proxy reports. end closes them.
func (b *bench) openPages(p *proxy) (end func()) {
	address := must(harness.FindAddress())
	server := b.launch("pages", b.dir, b.buildCaddy(p.spec), "pg-ratelimit", "page", "--listen", address, "--dsn", p.dsn)
	check(server.WaitFor("the pages", func() bool {
		response, err := http.Get("http://" + address + "/api/session")
		return err == nil && response.Body.Close() == nil
	}))
	var pages sync.WaitGroup
	closed := make(chan struct{})
	for range openPages {
		pages.Go(func() { askEachSecond("http://"+address+"/api/state", closed) })
	}
	for query(b.ctx, p.dsn, "SELECT count(live) FROM rate_limit_nodes") != "1" {
		time.Sleep(50 * time.Millisecond)
	}
	return func() {
		close(closed)
		pages.Wait()
		check(server.Stop())
	}
}

// askEachSecond asks as an open page does, until it is closed.
func askEachSecond(url string, closed <-chan struct{}) {
	for {
		response, err := http.Get(url)
		check(err)
		_, err = io.Copy(io.Discard, response.Body)
		check(response.Body.Close())
		check(err)
		select {
		case <-closed:
			return
		case <-time.After(time.Second):
		}
	}
}
