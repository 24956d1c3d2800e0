package imports

import (
	"go/ast"
	"go/token"
	"go/types"
)

func anyNil(expressions []ast.Expr) bool {
	for _, e := range expressions {
		if name, ok := e.(*ast.Ident); ok && name.Name == "nil" {
			return true
		}
	}
	return false
}

// builtins are the builtin functions with a result.
var builtins = map[string]bool{"append": true, "cap": true, "copy": true, "len": true, "make": true,
	"new": true}

// contains reports whether a node, or a node in it, matches.
func contains(n ast.Node, matches func(ast.Node) bool) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		found = found || n != nil && matches(n)
		return !found
	})
	return found
}

// inLoop reports whether a node is a loop with a body that contains a node for which matches returns true.
func inLoop(n ast.Node, matches func(ast.Node) bool) bool {
	switch loop := n.(type) {
	case *ast.ForStmt:
		return contains(loop.Body, matches)
	case *ast.RangeStmt:
		return contains(loop.Body, matches)
	}
	return false
}

// isTwoValued reports whether a node assigns the two values of a map entry or of a type
// assertion, and uses the first.
func isTwoValued(n ast.Node, tok token.Token) bool {
	assign, ok := n.(*ast.AssignStmt)
	if !ok || assign.Tok != tok || len(assign.Lhs) != 2 || len(assign.Rhs) != 1 ||
		types.ExprString(assign.Lhs[0]) == "_" {
		return false
	}
	switch assign.Rhs[0].(type) {
	case *ast.IndexExpr, *ast.TypeAssertExpr:
		return true
	}
	return false
}

// isSequence reports whether a literal is of an array, a slice or a map.
func isSequence(literal *ast.CompositeLit) bool {
	switch literal.Type.(type) {
	case *ast.ArrayType, *ast.MapType:
		return true
	}
	return false
}

// isSharedLiteral reports whether a node makes a variable of an array literal, or has the address
// of a literal of an array, a slice or a map.
func isSharedLiteral(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.UnaryExpr:
		literal, ok := n.X.(*ast.CompositeLit)
		return ok && n.Op == token.AND && isSequence(literal)
	case *ast.AssignStmt:
		for _, e := range n.Rhs {
			if literal, ok := e.(*ast.CompositeLit); ok {
				if array, ok := literal.Type.(*ast.ArrayType); ok && array.Len != nil {
					return true
				}
			}
		}
	}
	return false
}

// startsLiteral reports whether a node is a go statement, or a call of time.AfterFunc or
// context.AfterFunc, with a function literal.
func startsLiteral(n ast.Node) bool {
	if started, ok := n.(*ast.GoStmt); ok {
		_, literal := started.Call.Fun.(*ast.FuncLit)
		return literal
	}
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 2 {
		return false
	}
	_, literal := call.Args[1].(*ast.FuncLit)
	name, selector := call.Fun.(*ast.SelectorExpr)
	return literal && selector && name.Sel.Name == "AfterFunc"
}

// setsAny reports whether a node sets one of the variables and fields after a position.
func setsAny(n ast.Node, after token.Pos, names map[string]bool) bool {
	return contains(n, func(n ast.Node) bool {
		var set []ast.Expr
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				set = n.Lhs
			}
		case *ast.IncDecStmt:
			set = []ast.Expr{n.X}
		}
		for _, e := range set {
			if e.Pos() > after && names[types.ExprString(e)] {
				return true
			}
		}
		return false
	})
}

// evaluatesArgumentsLate reports whether a node is a loop with a deferred call or a started method, or a
// function that sets a variable after it has passed the variable to such a call.
func evaluatesArgumentsLate(n ast.Node) bool {
	if inLoop(n, func(n ast.Node) bool { return lateCall(n) != nil }) {
		return true
	}
	_, body := functionOf(n)
	return body != nil && contains(body, func(n ast.Node) bool {
		call := lateCall(n)
		if call == nil {
			return false
		}
		names := map[string]bool{}
		for _, e := range append([]ast.Expr{call.Fun}, call.Args...) {
			ast.Inspect(e, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncLit:
					return false
				case *ast.UnaryExpr:
					return n.Op != token.AND // an address stays the same
				case ast.Expr:
					names[types.ExprString(n)] = true
				}
				return true
			})
		}
		return setsAny(body, call.End(), names)
	})
}

// lateCall returns the call that a node defers, or the call of a method that it starts, or nil.
func lateCall(n ast.Node) *ast.CallExpr {
	switch n := n.(type) {
	case *ast.DeferStmt:
		return n.Call
	case *ast.GoStmt:
		if _, ok := n.Call.Fun.(*ast.SelectorExpr); ok {
			return n.Call
		}
	}
	return nil
}

// redeclaresVariable reports whether a node is a function or block in which a := of several values sets a
// variable of the same block, a parameter or a result.
func redeclaresVariable(n ast.Node) bool {
	block, _ := n.(*ast.BlockStmt)
	known := map[string]bool{}
	if f, body := functionOf(n); body != nil {
		block = body
		for _, list := range []*ast.FieldList{f.Params, f.Results} {
			if list == nil {
				continue
			}
			for _, field := range list.List {
				for _, name := range field.Names {
					known[name.Name] = true
				}
			}
		}
	}
	if block == nil {
		return false
	}
	for _, s := range block.List {
		assign, ok := s.(*ast.AssignStmt)
		if !ok || assign.Tok != token.DEFINE {
			continue
		}
		for _, e := range assign.Lhs {
			name := types.ExprString(e)
			if len(assign.Rhs) > 1 && known[name] {
				return true
			}
			known[name] = name != "_"
		}
	}
	return false
}
