// Package grpccall makes calls of gRPC for tests.
package grpccall

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// attempts counts the attempts of a call.
type attempts struct {
	stats.Handler
	n atomic.Int32
}

func (a *attempts) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.Begin); ok {
		a.n.Add(1)
	}
}
func (*attempts) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*attempts) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*attempts) HandleConn(context.Context, stats.ConnStats)                       {}

// Call calls a method at an address, up to three times if the status is retried. It returns the status and
// the number of attempts. headers has pairs of a name and a value.
func Call(t testing.TB, address, host, method, retried string, headers ...string) (*status.Status, int32) {
	t.Helper()
	a := &attempts{}
	conn, err := grpc.NewClient(address, grpc.WithAuthority(host), grpc.WithStatsHandler(a),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(fmt.Sprintf(`{"methodConfig": [{"name": [{}], "retryPolicy": {
			"maxAttempts": 3, "initialBackoff": "0.01s", "maxBackoff": "0.01s", "backoffMultiplier": 1,
			"retryableStatusCodes": [%q]}}]}`, retried)))
	check.OK(t, err)
	defer conn.Close()
	err = conn.Invoke(metadata.AppendToOutgoingContext(t.Context(), headers...), method, &emptypb.Empty{},
		&emptypb.Empty{})
	return status.Convert(err), a.n.Load()
}
