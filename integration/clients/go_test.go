package clients

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-retryablehttp"
	openaiv1 "github.com/openai/openai-go"
	optionv1 "github.com/openai/openai-go/option"
	openaiv3 "github.com/openai/openai-go/v3"
	optionv3 "github.com/openai/openai-go/v3/option"
	goopenai "github.com/sashabaranov/go-openai"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/pgratelimit/pg-ratelimit/integration/grpccall"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// runGo sends the requests of Go's clients.
func runGo(t *testing.T, url string, to chan<- report) {
	var running sync.WaitGroup
	for client, send := range map[string]func(ctx context.Context, url string) error{
		"openai-go v1": func(ctx context.Context, url string) error {
			client := openaiv1.NewClient(optionv1.WithBaseURL(url), optionv1.WithAPIKey("k"))
			_, err := client.Chat.Completions.New(ctx, openaiv1.ChatCompletionNewParams{Model: "gpt-4o",
				Messages: []openaiv1.ChatCompletionMessageParamUnion{openaiv1.UserMessage("hi")}})
			if e := (*openaiv1.Error)(nil); errors.As(err, &e) {
				err = fmt.Errorf("%d %s %s %s", e.StatusCode, e.Code, e.Type, e.Message)
			}
			return err
		},
		"openai-go v3": func(ctx context.Context, url string) error {
			client := openaiv3.NewClient(optionv3.WithBaseURL(url), optionv3.WithAPIKey("k"))
			_, err := client.Chat.Completions.New(ctx, openaiv3.ChatCompletionNewParams{Model: "gpt-4o",
				Messages: []openaiv3.ChatCompletionMessageParamUnion{openaiv3.UserMessage("hi")}})
			if e := (*openaiv3.Error)(nil); errors.As(err, &e) {
				err = fmt.Errorf("%d %s %s %s", e.StatusCode, e.Code, e.Type, e.Message)
			}
			return err
		},
		"go-openai": func(ctx context.Context, url string) error {
			config := goopenai.DefaultConfig("k")
			config.BaseURL = url
			_, err := goopenai.NewClientWithConfig(config).CreateChatCompletion(ctx,
				goopenai.ChatCompletionRequest{Model: "gpt-4o", Messages: []goopenai.ChatCompletionMessage{
					{Role: "user", Content: "hi"}}})
			if e := (*goopenai.APIError)(nil); errors.As(err, &e) {
				err = fmt.Errorf("%d %v %s %s", e.HTTPStatusCode, e.Code, e.Type, e.Message)
			}
			return err
		},
		"go-retryablehttp": func(ctx context.Context, url string) error {
			client := retryablehttp.NewClient()
			client.Logger = log.New(io.Discard, "", 0)
			client.RetryWaitMin, client.RetryWaitMax = time.Millisecond, 10*time.Millisecond
			r, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			response, err := client.Do(r)
			if err == nil {
				_ = response.Body.Close()
				if response.StatusCode != http.StatusOK {
					err = errors.New(response.Status)
				}
			}
			return err
		},
	} {
		for _, kind := range kinds {
			running.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				end := "passed"
				if err := send(ctx, url+"/"+client+"/"+kind); err != nil {
					end = "refused " + err.Error()
				}
				if ctx.Err() != nil {
					end = "waits"
				}
				to <- report{client, kind, end}
			})
		}
	}
	running.Wait()
}

// refusedCalls has what clients of gRPC and Connect report of the refusals of each kind, and how often a
// client with a retry policy asks.
var refusedCalls = map[string]struct {
	code     codes.Code
	message  string
	attempts int32
}{
	"month":  {codes.ResourceExhausted, "Too many requests: limit month, retry in 26", 1},
	"never":  {codes.ResourceExhausted, "Too many requests: limit never, which never admits", 1},
	"flight": {codes.ResourceExhausted, "Too many requests: limit flight, retry in 1 s", 3},
	"down":   {codes.Unavailable, "Service unavailable", 1},
	"banned": {codes.PermissionDenied, "Banned, retry in 3", 1},
}

// A client of gRPC with a retry policy reports the status of gRPC, and obeys the pushback.
func TestClientsOfGRPCUnderstandRefusals(t *testing.T) { inBoth(t, understandGRPC) }

// inBoth runs a test with each proxy.
func inBoth(t *testing.T, test func(t *testing.T, f *front, url string)) {
	for _, proxy := range []string{"caddy", "traefik"} {
		t.Run(proxy, func(t *testing.T) {
			f, url := startFront(t, proxy)
			test(t, f, url)
		})
	}
}

func understandGRPC(t *testing.T, f *front, _ string) {
	for kind, want := range refusedCalls {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f.useUp("grpc-go", kind)
			began := time.Now()
			address := strings.TrimPrefix(f.url, "http://")
			s, attempts := grpccall.Call(t, address, address, "/"+kind+"/Call", "RESOURCE_EXHAUSTED",
				"x-client", "grpc-go", "x-user", "grpc-go."+kind)
			check.Equal(t, "the status", s.Code(), want.code)
			check.Equal(t, "the attempts", attempts, want.attempts)
			if !strings.HasPrefix(s.Message(), want.message) {
				t.Errorf("the message is %q, want %q …", s.Message(), want.message)
			}
			if took := time.Since(began); took < time.Duration(want.attempts-1)*time.Second {
				t.Errorf("%d attempts took %v, want the waits between them", want.attempts, took)
			}
		})
	}
	// The same request over HTTP/1 is no call of gRPC.
	response := harness.Ask(t, harness.Get(f.url+"/banned/", "X-User", "first.banned", "TE", "trailers",
		"Content-Type", "application/grpc"))
	check.Equal(t, "the status over HTTP/1", response.Status, http.StatusForbidden)
}

// A client of gRPC-Web and of Connect reports the code and the limit, over HTTP/1.1, of calls and streams.
func TestClientsOfConnectUnderstandRefusals(t *testing.T) { inBoth(t, understandConnect) }

func understandConnect(t *testing.T, f *front, _ string) {
	get := connect.WithClientOptions(connect.WithHTTPGet(), connect.WithIdempotency(
		connect.IdempotencyNoSideEffects))
	for protocol, options := range map[string][]connect.ClientOption{
		"connect": nil, "connect-json": {connect.WithProtoJSON()}, "connect-get": {get},
		"grpc-web": {connect.WithGRPCWeb()}, "connect-stream": nil,
		"grpc-web-stream": {connect.WithGRPCWeb()},
	} {
		for kind, want := range refusedCalls {
			f.useUp(protocol, kind)
			client := connect.NewClient[emptypb.Empty, emptypb.Empty](http.DefaultClient,
				f.url+"/"+kind+"/Call", options...)
			request := connect.NewRequest(&emptypb.Empty{})
			request.Header().Set("X-Client", protocol)
			request.Header().Set("X-User", "first."+kind)
			var err error
			if strings.HasSuffix(protocol, "stream") {
				var stream *connect.ServerStreamForClient[emptypb.Empty]
				if stream, err = client.CallServerStream(t.Context(), request); err == nil {
					stream.Receive()
					err = stream.Err()
				}
			} else {
				_, err = client.CallUnary(t.Context(), request)
			}
			what := protocol + ", " + kind
			check.Equal(t, what, connect.CodeOf(err), connect.Code(want.code))
			_, message, _ := strings.Cut(fmt.Sprint(err), ": ")
			if !strings.HasPrefix(message, want.message) {
				t.Errorf("%s: the message is %q, want %q …", what, message, want.message)
			}
		}
	}
}
