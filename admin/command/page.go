package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	webpage "github.com/pgratelimit/pg-ratelimit/admin/page"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
)

// pageShutdown bounds the time that servePage waits at its end for requests in flight.
const pageShutdown = time.Second

var pageCommand = commandSpec{
	use:   "page",
	short: "Serves a page that shows what all proxies do, and why a request was refused",
	long: `The page reads only the database, so it also shows Traefik. Its API is below /api/, and /metrics
has the figures of all proxies for Prometheus.

The page has no login. Without --insecure, it therefore listens on this machine only. From another
machine, use ssh -L, or the handler pg_ratelimit_page behind an authentication.`,
	offline: true,
	flags: []flag{
		{name: "listen", value: "127.0.0.1:2020", usage: "address and port"},
		repeated("host", "further host names of the page"),
		toggle("insecure", "listen on addresses that other machines can reach"),
	},
	runGo: func(c *invocation) error {
		dsn, err := c.database()
		if err == nil {
			err = checkListen(c.flag("listen"), c.boolFlag("insecure"))
		}
		if err != nil {
			return err
		}
		return c.servePage(webpage.Options{
			DSN: dsn, Version: host.Version, Hosts: c.flagList("host"),
			Renew: func() (webpage.Options, error) {
				current, err := c.database()
				return webpage.Options{DSN: current}, err
			},
		})
	},
}

// checkListen returns an error for an address that other machines can reach, unless insecure is true.
func checkListen(listen string, insecure bool) error {
	listenHost, _, err := net.SplitHostPort(listen)
	if err != nil {
		return invalid("--listen", listen, "an address and a port, such as 127.0.0.1:2020")
	}
	address, err := netip.ParseAddr(listenHost)
	if insecure || listenHost == "localhost" || err == nil && address.IsLoopback() {
		return nil
	}
	return invalid("--listen", listen, "an address that only this machine can reach, such as "+
		"127.0.0.1:2020, unless --insecure is given: the page has no login")
}

// servePage serves the page until a signal ends it.
func (c *invocation) servePage(o webpage.Options) error {
	s, err := webpage.New(o)
	if err != nil {
		return err
	}
	defer s.Close()
	listener, err := net.Listen("tcp", c.flag("listen"))
	if err != nil {
		return invalid("--listen", c.flag("listen"), "a free port: "+err.Error())
	}
	ctx, stop := c.untilSignal()
	defer stop()
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	context.AfterFunc(ctx, func() {
		s.Close() // cancels the statements of requests in flight
		shutdownCtx, cancel := context.WithTimeout(context.Background(), pageShutdown)
		defer cancel()
		if server.Shutdown(shutdownCtx) != nil {
			_ = server.Close() // the remaining requests end with the process
		}
	})
	fmt.Fprintf(c.cmd.OutOrStdout(), "The page is at http://%s/ (Ctrl-C ends it)\n", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
