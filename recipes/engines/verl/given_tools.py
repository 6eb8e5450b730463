"""The file that verl loads for tools, in each process: it loads the recipe's, which needs no decorator."""

from verl.tools.function_tool import FUNCTION_TOOL_REGISTRY

from recipes.engines.verl.tools import given, load_tools

FUNCTION_TOOL_REGISTRY.update({tool.name: tool for tool in load_tools(given().file)})
