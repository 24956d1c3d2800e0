package integration

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/traefik/yaegi/interp"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// TestInterpretedRulesDecideAsCompiledOnesDo decides the same requests compiled and
// interpreted, with and without the memo. Tests of package policy compare the compiled
// decisions with a loop over all rules.
func TestInterpretedRulesDecideAsCompiledOnesDo(t *testing.T) {
	t.Parallel()
	i := newInterpreter(t, interp.Options{Env: os.Environ()})
	if _, err := i.Eval(fmt.Sprintf("import %q", modulePath+"/internal/testkit/policytest")); err != nil {
		t.Fatal(err)
	}
	v, err := i.Eval("policytest.Run")
	if err != nil {
		t.Fatal(err)
	}
	run, ok := v.Interface().(func(seed, rules, requests, remember int, selective bool) []string)
	if !ok {
		t.Fatalf("policytest.Run is a %s", v.Type())
	}
	for seed, rules := range []int{5, 20, 100, 1000} {
		for _, remember := range []int{0, 200} {
			for _, selective := range []bool{false, true} {
				if rules > 100 && !selective {
					continue
				}
				const requests = 400
				want := policytest.Run(seed, rules, requests, remember, selective)
				got := run(seed, rules, requests, remember, selective)
				if !slices.Equal(got, want) || len(want) != requests {
					for i := range want {
						if i >= len(got) || got[i] != want[i] {
							t.Fatalf("%d rules, remember %d, selective %v, request %d:\n got %q\nwant %q", rules, remember, selective, i, got[i], want[i])
						}
					}
				}
			}
		}
	}
}
