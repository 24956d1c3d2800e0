package integration

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/traefik/yaegi/interp"
)

// interpretedFolders are the packages that Traefik interprets.
var interpretedFolders = []string{
	"ratelimit", "ratelimit/algorithm", "ratelimit/memory", "ratelimit/policy", "ratelimit/postgres", "ratelimit/schema",
	"internal/batch", "internal/edge", "internal/lease", "internal/pgwire", "internal/policytest", "internal/sqlstate", "traefikplugin",
}

// hazard is a construct of Go that Yaegi v0.16.1 accepts and runs wrongly without an error.
// proof is an expression that is true in Go and not in Yaegi, after setup.
type hazard struct {
	name, setup, proof string
	found              func(ast.Node) bool
	exempt             map[string]string // reasons, by the function's name
}

var hazards = []hazard{
	{
		name:  "a call and another expression on the right of one assignment: the other expression is not assigned",
		setup: `func seven() int { return 7 }; func hazard() bool { a, b := 0, 0; a, b = seven(), 1; return a == 7 && b == 1 }`,
		proof: `hazard()`,
		found: func(n ast.Node) bool {
			assign, ok := n.(*ast.AssignStmt)
			if !ok || assign.Tok != token.ASSIGN || len(assign.Rhs) < 2 {
				return false
			}
			calls := 0
			for _, e := range assign.Rhs {
				if _, ok := e.(*ast.CallExpr); ok {
					calls++
				}
			}
			return calls > 0 && calls < len(assign.Rhs)
		},
	}, {
		name:  "several conditions in a case of a switch without a value: only the first counts",
		setup: `func hazard(n int) bool { switch { case n == 1, n == 2: return true }; return false }`,
		proof: `hazard(2)`,
		found: func(n ast.Node) bool {
			s, ok := n.(*ast.SwitchStmt)
			if !ok || s.Tag != nil {
				return false
			}
			for _, c := range s.Body.List {
				if len(c.(*ast.CaseClause).List) > 1 {
					return true
				}
			}
			return false
		},
	}, {
		name:  "nil among several values of an assignment: it panics",
		setup: `func hazard() (ok bool) { defer func() { ok = recover() == nil }(); var e error; n := 0; n, e = 1, nil; return n == 1 && e == nil }`,
		proof: `hazard()`,
		found: func(n ast.Node) bool {
			assign, ok := n.(*ast.AssignStmt)
			return ok && len(assign.Rhs) > 1 && anyNil(assign.Rhs)
		},
	}, {
		name:  "a bare nil appended, but to a []any: after other uses of nil it panics",
		setup: `func hazard() (ok bool) { defer func() { ok = recover() == nil }(); var e []error; e = append(e, nil); var l [][]byte; l = append(l, nil); return len(e) == len(l) }`,
		proof: `hazard()`,
		found: func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return false
			}
			name, ok := call.Fun.(*ast.Ident)
			return ok && name.Name == "append" && anyNil(call.Args[1:])
		},
		exempt: map[string]string{"write": "statement parameters are a []any"},
	}, {
		name:  "two calls of len in one return, of a function with named results: both are the last",
		setup: `type two struct{ a, b []int }; func (t *two) lens() (x, y int) { return len(t.a), len(t.b) }; func hazard() bool { x, y := (&two{make([]int, 1), make([]int, 2)}).lens(); return x == 1 && y == 2 }`,
		proof: `hazard()`,
		found: func(n ast.Node) bool {
			r, ok := n.(*ast.ReturnStmt)
			if !ok {
				return false
			}
			lens := 0
			for _, e := range r.Results {
				if call, ok := e.(*ast.CallExpr); ok {
					if name, ok := call.Fun.(*ast.Ident); ok && (name.Name == "len" || name.Name == "cap") {
						lens++
					}
				}
			}
			return lens > 1
		},
	}, {
		name:  "a named result that is read before it is set: it has the value that the caller's variable had",
		setup: `func list(n int) (l []int) { if n > 0 { l = append(l, n) }; return l }; func hazard() bool { total := 0; for n := 1; n < 3; n++ { l := list(n); total += len(l) }; return total == 2 }`,
		proof: `hazard()`,
		found: readsUnsetResult,
	}, {
		name: "a select that several goroutines are in at once: they share its cases",
		// There is no proof: it is a race. In Yaegi's interp/run.go, _select makes
		// its slice of cases once a statement, not once a use.
		found: func(n ast.Node) bool { _, ok := n.(*ast.SelectStmt); return ok },
		exempt: map[string]string{
			"Wait": "the plugin does not wait: Limiter is for Go programs",
		},
	},
}

// readsUnsetResult reports whether a node is a function that may read one of its named results,
// or return it with a bare return, before it has set it.
func readsUnsetResult(n ast.Node) bool {
	var function *ast.FuncType
	var body *ast.BlockStmt
	switch f := n.(type) {
	case *ast.FuncDecl:
		function, body = f.Type, f.Body
	case *ast.FuncLit:
		function, body = f.Type, f.Body
	}
	if body == nil || function.Results == nil {
		return false
	}
	unset := map[string]bool{}
	for _, result := range function.Results.List {
		for _, name := range result.Names {
			unset[name.Name] = name.Name != "_"
		}
	}
	return len(unset) > 0 && readsAny(body.List, unset)
}

// readsAny reports whether statements may read a variable before they have set it, or return
// with a bare return before they have set all.
func readsAny(statements []ast.Stmt, unset map[string]bool) bool {
	unset = maps.Clone(unset)
	reads := false
	var look func(n ast.Node) bool
	look = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			reads = reads || readsAny(n.List, unset)
			return false
		case *ast.IfStmt:
			if n.Init == nil {
				return true
			}
			ast.Inspect(n.Init, look)
			assign, ok := n.Init.(*ast.AssignStmt)
			if ok && assign.Tok == token.DEFINE {
				reads = reads || readsAny([]ast.Stmt{&ast.ExprStmt{X: n.Cond}, n.Body}, without(unset, assign))
			} else {
				if ok {
					unset = without(unset, assign)
				}
				ast.Inspect(n.Cond, look)
				ast.Inspect(n.Body, look)
			}
			if n.Else != nil {
				ast.Inspect(n.Else, look)
			}
			return false
		case *ast.DeferStmt: // it may have the address of a result, to set it after a panic
			for _, e := range n.Call.Args {
				if address, ok := e.(*ast.UnaryExpr); !ok || address.Op != token.AND {
					ast.Inspect(e, look)
				}
			}
			ast.Inspect(n.Call.Fun, look)
			return false
		case *ast.CaseClause:
			for _, e := range n.List {
				ast.Inspect(e, look)
			}
			reads = reads || readsAny(n.Body, unset)
			return false
		case *ast.AssignStmt:
			for _, e := range n.Rhs {
				ast.Inspect(e, look)
			}
			for _, e := range n.Lhs {
				if _, plain := e.(*ast.Ident); !plain || n.Tok != token.ASSIGN && n.Tok != token.DEFINE {
					ast.Inspect(e, look)
				}
			}
			return false
		case *ast.SelectorExpr:
			ast.Inspect(n.X, look) // not the name of the field
			return false
		case *ast.KeyValueExpr:
			ast.Inspect(n.Value, look)
			return false
		case *ast.ReturnStmt:
			for _, isUnset := range unset {
				reads = reads || isUnset && len(n.Results) == 0
			}
		case *ast.Ident:
			reads = reads || unset[n.Name]
		}
		return true
	}
	for _, s := range statements {
		ast.Inspect(s, look)
		if assign, ok := s.(*ast.AssignStmt); ok {
			unset = without(unset, assign)
		}
	}
	return reads
}

// without is the variables that are still unset after an assignment.
func without(unset map[string]bool, assign *ast.AssignStmt) map[string]bool {
	left := maps.Clone(unset)
	for _, e := range assign.Lhs {
		if name, ok := e.(*ast.Ident); ok {
			delete(left, name.Name)
		}
	}
	return left
}

func anyNil(expressions []ast.Expr) bool {
	for _, e := range expressions {
		if name, ok := e.(*ast.Ident); ok && name.Name == "nil" {
			return true
		}
	}
	return false
}

// TestYaegiStillGetsThisWrong fails if Yaegi runs a hazard correctly: its rule is then not
// needed any more.
func TestYaegiStillGetsThisWrong(t *testing.T) {
	for _, h := range hazards {
		if h.proof == "" {
			continue
		}
		i := interp.New(interp.Options{Stderr: &output{}})
		if _, err := i.Eval(h.setup); err != nil {
			t.Errorf("%s: %v", h.name, err)
			continue
		}
		right, err := i.Eval(h.proof)
		if err == nil && right.Bool() {
			t.Errorf("Yaegi does it right: %s", h.name)
		}
	}
}

// TestInterpretedCodeAvoidsWhatYaegiGetsWrong looks for hazards in the interpreted packages.
func TestInterpretedCodeAvoidsWhatYaegiGetsWrong(t *testing.T) {
	for _, folder := range interpretedFolders {
		files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(folder), "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) == 0 {
			t.Errorf("%s has no files", folder)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			for _, complaint := range hazardsIn(t, path) {
				t.Error(complaint)
			}
		}
	}
}

// hazardsIn are the hazards in a file, each with its place.
func hazardsIn(t *testing.T, path string) []string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var complaints []string
	for _, declaration := range file.Decls {
		function := ""
		if f, ok := declaration.(*ast.FuncDecl); ok {
			function = f.Name.Name
		}
		ast.Inspect(declaration, func(n ast.Node) bool {
			for _, h := range hazards {
				if h.exempt[function] == "" && n != nil && h.found(n) {
					complaints = append(complaints, fmt.Sprintf("%s: %s", fset.Position(n.Pos()), h.name))
				}
			}
			return true
		})
	}
	return complaints
}
