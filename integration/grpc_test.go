package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// Both proxies refuse a call of gRPC with the status of gRPC, and with grpc off as any other request.
func TestCallsOfGRPCAreRefusedInBothProxies(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(upstream.Close)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	t.Cleanup(client.CloseIdleConnections)
	for grpc, want := range map[string]string{"on": "200 8 application/grpc 0",
		"off": "429  application/json 50"} {
		for proxy, url := range bothProxies(t, cluster.Open(t), upstream.URL, object{"prefix": "PROXY",
			"limit": "1 60d", "algorithm": "sliding_log", "key": "all", "grpc": grpc}) {
			got := ""
			for range 2 {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header = http.Header{"Te": {"trailers"}, "Content-Type": {"application/grpc+proto"}}
				response, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				_ = response.Body.Close()
				h := response.Header
				got = fmt.Sprint(response.StatusCode, " ", h.Get("Grpc-Status"), " ",
					h.Get("Content-Type"), " ", max(0, response.ContentLength))
			}
			check.Equal(t, proxy+", grpc "+grpc, got, want)
		}
	}
}
