package imports

import (
	"go/ast"
	"go/token"
	"maps"
	"slices"
)

// functionOf returns the type and the body of a function, or nil if the node is no function or has no body.
func functionOf(n ast.Node) (*ast.FuncType, *ast.BlockStmt) {
	switch f := n.(type) {
	case *ast.FuncDecl:
		return f.Type, f.Body
	case *ast.FuncLit:
		return f.Type, f.Body
	}
	return nil, nil
}

// resultsOf returns the names of a function's results in order, or nil if the node is no function or its
// results have no names.
func resultsOf(n ast.Node) []string {
	f, body := functionOf(n)
	if body == nil || f.Results == nil {
		return nil
	}
	var names []string
	for _, result := range f.Results.List {
		for _, name := range result.Names {
			names = append(names, name.Name)
		}
	}
	return names
}

// returnsReplacedResult reports whether a node is a function with a return that reads a named
// result after the place of that result.
func returnsReplacedResult(n ast.Node) bool {
	results := resultsOf(n)
	if len(results) < 2 {
		return false
	}
	_, body := functionOf(n)
	return contains(body, func(n ast.Node) bool {
		r, ok := n.(*ast.ReturnStmt)
		if !ok {
			return false
		}
		for i, e := range r.Results {
			if contains(e, func(n ast.Node) bool {
				name, ok := n.(*ast.Ident)
				if !ok {
					return false
				}
				earlier := slices.Index(results, name.Name)
				return earlier >= 0 && earlier < i
			}) {
				return true
			}
		}
		return false
	})
}

// recoversWithoutResult reports whether a node is a function that has results without names and
// a recover in a deferred function literal.
func recoversWithoutResult(n ast.Node) bool {
	f, body := functionOf(n)
	if body == nil || f.Results == nil || len(resultsOf(n)) > 0 {
		return false
	}
	for _, s := range body.List {
		deferred, ok := s.(*ast.DeferStmt)
		if !ok {
			continue
		}
		if literal, ok := deferred.Call.Fun.(*ast.FuncLit); ok && contains(literal, func(n ast.Node) bool {
			name, ok := n.(*ast.Ident)
			return ok && name.Name == "recover"
		}) {
			return true
		}
	}
	return false
}

// readsUnsetResult reports whether a node is a function that may read or return one of its named results
// before it sets the result.
func readsUnsetResult(n ast.Node) bool {
	unset := map[string]bool{}
	for _, name := range resultsOf(n) {
		unset[name] = name != "_"
	}
	_, body := functionOf(n)
	return len(unset) > 0 && readsAny(body.List, unset)
}

// readsAny reports whether statements may read an unset variable, or have a bare return while one is unset.
func readsAny(statements []ast.Stmt, unset map[string]bool) bool {
	unset = maps.Clone(unset)
	reads := false
	var visit func(n ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			reads = reads || readsAny(n.List, unset)
			return false
		case *ast.IfStmt:
			if n.Init == nil {
				return true
			}
			ast.Inspect(n.Init, visit)
			assign, ok := n.Init.(*ast.AssignStmt)
			if ok && assign.Tok == token.DEFINE {
				reads = reads || readsAny([]ast.Stmt{&ast.ExprStmt{X: n.Cond}, n.Body},
					without(unset, assign))
			} else {
				if ok {
					unset = without(unset, assign)
				}
				ast.Inspect(n.Cond, visit)
				ast.Inspect(n.Body, visit)
			}
			if n.Else != nil {
				ast.Inspect(n.Else, visit)
			}
			return false
		case *ast.DeferStmt: // it may have the address of a result, to set it after a panic
			for _, e := range n.Call.Args {
				if address, ok := e.(*ast.UnaryExpr); !ok || address.Op != token.AND {
					ast.Inspect(e, visit)
				}
			}
			ast.Inspect(n.Call.Fun, visit)
			return false
		case *ast.CaseClause:
			for _, e := range n.List {
				ast.Inspect(e, visit)
			}
			reads = reads || readsAny(n.Body, unset)
			return false
		case *ast.AssignStmt:
			for _, e := range n.Rhs {
				ast.Inspect(e, visit)
			}
			for _, e := range n.Lhs {
				if _, plain := e.(*ast.Ident); !plain || n.Tok != token.ASSIGN && n.Tok != token.DEFINE {
					ast.Inspect(e, visit)
				}
			}
			return false
		case *ast.SelectorExpr:
			ast.Inspect(n.X, visit) // not the name of the field
			return false
		case *ast.KeyValueExpr:
			ast.Inspect(n.Value, visit)
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
		ast.Inspect(s, visit)
		if assign, ok := s.(*ast.AssignStmt); ok {
			unset = without(unset, assign)
		}
	}
	return reads
}

// without returns the variables that are still unset after an assignment.
func without(unset map[string]bool, assign *ast.AssignStmt) map[string]bool {
	rest := maps.Clone(unset)
	for _, e := range assign.Lhs {
		if name, ok := e.(*ast.Ident); ok {
			delete(rest, name.Name)
		}
	}
	return rest
}
